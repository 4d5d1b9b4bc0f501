/* SPDX-License-Identifier: Apache-2.0 */
/* What fault:plant=WORD does to one operation: plants.def has the words. All of it is local to the
** rank, through the device table alone, so a plant works over every backend and on every device
** whose elements mean something.
**
** Ownership  rooms belong to the group and its works, and grow to the largest operation.
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

/* NULL past the last; is_shared: all ranks have to make it. */
const char *cd_plant_word(cd_plant plant);
bool cd_plant_is_shared(cd_plant plant);

/* Room for a copy of a tensor. Zero-initialised is empty. */
typedef struct cd_plant_room {
    const cddp_device *device;
    cddp_dtype dtype;
    int64_t capacity;
    void *storage;
    cddp_tensor view; /* of what was copied last; device NULL: nothing */
} cd_plant_room;
void cd_plant_room_fini(cd_plant_room *room);

/* Of a group, and of one work. */
typedef struct cd_plant_group {
    cd_plant_room last; /* slot: the result of the operation before */
    uint32_t under_way;
} cd_plant_group;
typedef struct cd_plant_work {
    cd_plant_room before; /* the output as it was, or zeros in place of the input */
    bool is_struck, is_counted, is_second;
} cd_plant_work;

/* Before the operation is issued: *call may be changed. */
cddp_status cd_plant_begin(cd_step_group *group, cd_step_work *work, cd_plant_group *plants,
                           cddp_collective *call, cddp_error *err);
/* After it ended well. */
cddp_status cd_plant_finish(cd_step_group *group, cd_step_work *work, cd_plant_group *plants,
                            cddp_error *err);
