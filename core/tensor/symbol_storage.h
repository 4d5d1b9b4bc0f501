/* SPDX-License-Identifier: Apache-2.0 */
/* Storage of device `symbol`: runs of forms, read and written through views. Inside core/tensor
** only.
**
** Invariants (cd_symbol_storage_audit):
**   S1  runs are sorted, touch each other, and cover elements 0 … numel - 1 exactly.
**   S2  every run has normal terms; terms of one atom advance equally; in a run of one element
**       nothing advances.
*/
#pragma once
#include "core/tensor/symbol_form.h"
#include "core/tensor/view.h"

typedef struct cd_symbol_run {
    int64_t offset;
    cd_piece piece;
    bool is_kept; /* while a write builds the next runs: this one moves there */
} cd_symbol_run;

typedef struct cd_symbol_storage {
    const cddp_allocator *allocator;
    int64_t numel;
    cd_symbol_run *runs;
    size_t run_count, run_capacity;
} cd_symbol_storage;

/* One run of garbage. */
cddp_status cd_symbol_storage_create(const cddp_allocator *allocator, int64_t numel,
                                     cd_symbol_storage **storage, cddp_error *err);
void cd_symbol_storage_destroy(cd_symbol_storage *storage); /* accepts NULL */
void cd_symbol_storage_audit(const cd_symbol_storage *storage);
const cddp_allocator *cd_symbol_allocator_of(const cddp_tensor *t);

/* Reads the pieces of a view in logical order, as the runs happen to be cut. */
typedef struct cd_piece_reader {
    const cd_symbol_storage *storage;
    cd_walk walk;
    cd_stretch stretch; /* what is left of the current one */
} cd_piece_reader;
void cd_piece_reader_begin(cd_piece_reader *reader, const cddp_tensor *view);
/* Elements that the current piece still has; 0 at the end. The slice starts at the current
** element. */
int64_t cd_piece_reader_get(cd_piece_reader *reader, cd_form_slice *slice);
void cd_piece_reader_skip(cd_piece_reader *reader, int64_t length);

/* Pieces in logical order, each as long as it can be (greedily, element by element: canonical). */
typedef struct cd_piece_list {
    const cddp_allocator *allocator;
    cd_piece *items;
    size_t count, capacity;
} cd_piece_list;
/* Takes the piece, also when it fails. */
cddp_status cd_piece_list_push(cd_piece_list *list, cd_piece *piece, cddp_error *err);
void cd_piece_list_fini(cd_piece_list *list);

/* Writes pieces, as many elements as the view has, into the storage behind it: all of them or
** none. */
cddp_status cd_symbol_storage_write(const cddp_tensor *dst, const cd_piece_list *pieces,
                                    cddp_error *err);
