/* SPDX-License-Identifier: Apache-2.0 */
/* A shard as it would be if its writer had been killed earlier:
**
**     cut_shard FROM TO EIGHTHS
**
** keeps so many eighths of its slots, at least one, and none of what was said when it was closed.
*/
#include <cddp/shard.h>

#include <stdio.h>
#include <stdlib.h>

static uint64_t count_slots(FILE *file)
{
    cddp_shard_slot slot;
    uint64_t count = 0;
    (void)fseek(file, CDDP_SHARD_HEADER_BYTES, SEEK_SET);
    while (fread(&slot, sizeof slot, 1, file) == 1 && slot.sequence != 0) count++;
    return count;
}

static bool copy(FILE *from, FILE *to, uint64_t slot_count)
{
    static union {
        cddp_shard_header header;
        char bytes[CDDP_SHARD_HEADER_BYTES];
    } head;
    rewind(from);
    if (fread(&head, sizeof head, 1, from) != 1) return false;
    head.header.end = CDDP_SHARD_OPEN;
    head.header.slots = 0;
    head.header.lost = head.header.seal_of_end = head.header.alive = 0;
    if (fwrite(&head, sizeof head, 1, to) != 1) return false;
    for (uint64_t i = 0; i < slot_count; i++) {
        cddp_shard_slot slot;
        if (fread(&slot, sizeof slot, 1, from) != 1 || fwrite(&slot, sizeof slot, 1, to) != 1)
            return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    if (argc != 4) return 2;
    FILE *from = fopen(argv[1], "rb"), *to = fopen(argv[2], "wb");
    bool is_done = from != NULL && to != NULL;
    if (is_done) {
        const uint64_t kept = count_slots(from) * (uint64_t)atoi(argv[3]) / 8;
        is_done = copy(from, to, kept > 0 ? kept : 1);
    }
    if (from != NULL) fclose(from);
    if (to != NULL && fclose(to) != 0) is_done = false;
    return is_done ? 0 : 1;
}
