/* SPDX-License-Identifier: Apache-2.0 */
/* One block, kept between worlds. A large world gives its pages back. A sanitizer keeps books about
** what lies where, which the next world would have to know: there nothing is kept. */
#include "sim/ground.h"

#include "sim/fiber.h"

#define KEPT_MAX ((size_t)64 << 20) /* touched bytes */
#define ROOM_MIN \
    ((size_t)256 << 20) /* of a kept block, for the stacks of a world with more ranks */

void cd_sim_ground_fini(cd_sim_ground *ground)
{
    cd_fiber_unmap(ground->block, ground->bytes);
    *ground = (cd_sim_ground){0};
}

static unsigned char *map_with_room(size_t *bytes)
{
    unsigned char *block = cd_fiber_map(*bytes + ROOM_MIN);
    if (block == NULL) return cd_fiber_map(*bytes);
    *bytes += ROOM_MIN;
    return block;
}

/* Where the world before had its guards the next one has memory. */
unsigned char *cd_sim_ground_take(cd_sim_ground *ground, size_t *bytes)
{
    if (ground == NULL) return cd_fiber_map(*bytes);
    if (ground->block != NULL) {
        unsigned char *block = ground->block;
        if (ground->bytes >= *bytes && cd_fiber_unguard(block, ground->bytes)) {
            *bytes = ground->bytes;
            *ground = (cd_sim_ground){0};
            return block;
        }
        cd_sim_ground_fini(ground);
    }
    return map_with_room(bytes);
}

void cd_sim_ground_give(cd_sim_ground *ground, unsigned char *block, size_t bytes,
                        size_t touched_bytes)
{
    if (block == NULL) return;
    if (ground == NULL || ground->block != NULL || touched_bytes > KEPT_MAX ||
        cd_fiber_has_shadow())
        cd_fiber_unmap(block, bytes);
    else
        *ground = (cd_sim_ground){block, bytes};
}
