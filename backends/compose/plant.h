/* SPDX-License-Identifier: Apache-2.0 */
/* The effect of fault:plant=WORD on one operation; plants.def has the words. A plant is local to
** the rank and uses only the device table. So it works over every backend and on every device that
** has real elements.
**
** Ownership the group and its works own the buffers, which grow to the largest operation.
*/
#pragma once
#include "backends/compose/step.h"

typedef enum cd_plant {
    CD_PLANT_NONE,
#define CD_PLANT(name, word, is_shared, summary) CD_PLANT_##name,
#include "backends/compose/plants.def"
#undef CD_PLANT
    CD_PLANT_COUNT
} cd_plant;

/* NULL past the last; is_shared: all ranks must make this mistake. */
const char *cd_plant_word(cd_plant plant);
bool cd_plant_is_shared(cd_plant plant);

/* A buffer for a copy of a tensor. Zero-initialised is empty. */
typedef struct cd_plant_room {
    const cddp_device *device;
    cddp_dtype dtype;
    int64_t capacity;
    void *storage;
    cddp_tensor view; /* the last copy; device NULL: none */
} cd_plant_room;
void cd_plant_room_fini(cd_plant_room *room);

/* Buffers of a group, and of one work. */
typedef struct cd_plant_group {
    cd_plant_room last; /* plant slot: the result of the operation before */
    uint32_t under_way;
} cd_plant_group;
typedef struct cd_plant_work {
    cd_plant_room before; /* the old output, or zeros in place of the input */
    bool is_struck, is_counted, is_second;
} cd_plant_work;

/* Called before the operation is issued; may change *call. */
cddp_status cd_plant_begin(cd_step_group *group, cd_step_work *work, cd_plant_group *plants,
                           cddp_collective *call, cddp_error *err);
/* Called after it ended well. */
cddp_status cd_plant_finish(cd_step_group *group, cd_step_work *work, cd_plant_group *plants,
                            cddp_error *err);
