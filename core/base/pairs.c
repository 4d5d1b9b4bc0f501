/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/pairs.h"

#include "core/base/error.h"

#include <string.h>

cddp_status cd_pairs_read(const char *owner, const char *text, cd_pair_take *take, void *self,
                          cddp_error *err)
{
    while (text != NULL && *text != '\0') {
        char pair[CD_PAIR_BYTES];
        const size_t length = strcspn(text, ",");
        if (length >= sizeof pair)
            return cd_fail(err, CDDP_E_CONFIG, "%s: option '%.40s…' is too long", owner, text);
        memcpy(pair, text, length);
        pair[length] = '\0';
        char *equals = strchr(pair, '=');
        if (equals == NULL)
            return cd_fail(err, CDDP_E_CONFIG, "%s: option '%s' is not key=value", owner, pair);
        *equals = '\0';
        CD_TRY(take(self, pair, equals + 1, err));
        text += length + (text[length] == ',');
    }
    return CDDP_OK;
}
