/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tensor/saved.h"

#include "core/base/error.h"

cddp_status cd_state_fail_early(const cd_state_in *in, cddp_error *err)
{
    return cd_fail(err, CDDP_E_CORRUPT, "%s: the saved state ends early", in->who);
}

cddp_status cd_state_put(cd_state_out *out, const void *bytes, size_t count, cddp_error *err)
{
    out->seal = cd_seal_add(out->seal, bytes, count);
    if (count > 0 && !out->writer->write(out->writer->context, bytes, count))
        return cd_fail(err, CDDP_E_IO, "%s: its state cannot be written", out->who);
    return CDDP_OK;
}

cddp_status cd_state_put_seal(cd_state_out *out, cddp_error *err)
{
    const uint64_t seal = out->seal;
    return CD_PASS(cd_state_put(out, &seal, sizeof seal, err));
}

cddp_status cd_state_get(cd_state_in *in, void *bytes, size_t count, cddp_error *err)
{
    if (count > 0 && !in->reader->read(in->reader->context, bytes, count))
        return CD_PASS(cd_state_fail_early(in, err));
    in->seal = cd_seal_add(in->seal, bytes, count);
    return CDDP_OK;
}

cddp_status cd_state_check_seal(cd_state_in *in, cddp_error *err)
{
    uint64_t wanted = in->seal, seal = 0;
    CD_TRY(cd_state_get(in, &seal, sizeof seal, err));
    return seal == wanted ? CDDP_OK
                          : cd_fail(err, CDDP_E_CORRUPT, "%s: the saved state is damaged", in->who);
}
