/* SPDX-License-Identifier: Apache-2.0 */
/* Certificates of covering explorations. */
#include "verify/explore/certificate.h"

#include "core/base/output.h"

#include <inttypes.h>

static void put_order(cd_text *text, const cd_cover *cover, const uint8_t *positions)
{
    uint8_t sequence[CD_COVER_EVENTS_MAX];
    for (uint32_t i = 0; i < cover->event_count; i++) sequence[positions[i]] = (uint8_t)i;
    cd_text_push(text, "order");
    for (uint32_t i = 0; i < cover->event_count; i++) cd_text_printf(text, " %u", sequence[i]);
    cd_text_push(text, "\n");
}

cddp_status cd_certificate_write(const char *path, const cd_explorer *e, uint64_t plan,
                                 cddp_error *err)
{
    const cd_cover *cover = &e->cover;
    cd_text text;
    cd_text_init(&text, false);
    cd_text_printf(&text,
                   "cddp-cover 1\nplan %016" PRIx64
                   "\nstrength %u\nevents %u\norders %u\nranks %u\nshift %u\n",
                   plan, cover->strength, cover->event_count, cover->order_count,
                   e->options.world_size, cd_cover_shift(cover, e->options.world_size));
    for (uint32_t i = 0; i < cover->event_count; i++)
        cd_text_printf(&text, "event %" PRIu64 "\n", e->covering.events[i]);
    for (uint32_t i = 0; i < cover->order_count; i++)
        put_order(&text, cover, cover->orders + (size_t)i * cover->event_count);
    cd_text_push(&text, "end\n");
    cddp_status status = cd_output_write(path, &text, err);
    cd_text_fini(&text);
    return status;
}
