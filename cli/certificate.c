/* SPDX-License-Identifier: Apache-2.0 */
/* Certificates of covering explorations. */
#include "cli/certificate.h"

#include "core/base/error.h"

#include <inttypes.h>
#include <stdio.h>

static void write_order(FILE *file, const cd_cover *cover, const uint8_t *positions)
{
    uint8_t sequence[CD_COVER_EVENTS_MAX];
    for (uint32_t i = 0; i < cover->event_count; i++) sequence[positions[i]] = (uint8_t)i;
    fputs("order", file);
    for (uint32_t i = 0; i < cover->event_count; i++) fprintf(file, " %u", sequence[i]);
    fputc('\n', file);
}

cddp_status cd_certificate_write(const char *path, const cd_explorer *e, uint64_t plan, cddp_error *err)
{
    const cd_cover *cover = &e->cover;
    FILE *file = fopen(path, "w");
    if (file == NULL) return cd_fail(err, CDDP_E_IO, "cannot write the certificate %s", path);
    fprintf(file, "cddp-cover 1\nplan %016" PRIx64 "\nstrength %u\nevents %u\norders %u\nranks %u\nshift %u\n", plan,
            cover->strength, cover->event_count, cover->order_count, e->options.world_size,
            cd_cover_shift(cover, e->options.world_size));
    for (uint32_t i = 0; i < cover->event_count; i++) fprintf(file, "event %" PRIu64 "\n", e->covering.events[i]);
    for (uint32_t i = 0; i < cover->order_count; i++)
        write_order(file, cover, cover->orders + (size_t)i * cover->event_count);
    fputs("end\n", file);
    bool is_whole = ferror(file) == 0;
    if (fclose(file) != 0 || !is_whole)
        return cd_fail(err, CDDP_E_IO, "the certificate %s could not be written whole", path);
    return CDDP_OK;
}
