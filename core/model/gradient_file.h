/* SPDX-License-Identifier: Apache-2.0 */
/* The gradients that a rank of a PyTorch job recorded: a row per backward, with what that backward
** added to each parameter (docs/formats/gradients.md).
**
** Lifetime   open → read rows → close. The file is opened for each read: ranks that are forked
**            processes share no position in it.
** Threads    any, each with its own.
** Errors     CDDP_E_IO where it is not there, CDDP_E_CORRUPT where it is another file.
*/
#pragma once
#include "cddp/alloc.h"
#include "cddp/tensor.h"

#define CD_GRADIENT_NAME_BYTES 192
#define CD_GRADIENT_PATH_BYTES 1024

/* As in the file, little endian. */
typedef struct cd_gradient_parameter {
    char name[CD_GRADIENT_NAME_BYTES];
    uint32_t dtype, dim_count;
    int64_t sizes[CDDP_DIMS_MAX];
    uint64_t is_trained;
} cd_gradient_parameter;

typedef struct cd_gradient_file {
    const cddp_allocator *allocator;
    char path[CD_GRADIENT_PATH_BYTES];
    uint32_t rank, world_size, parameter_count;
    int64_t row_count;
    uint64_t row_begin, row_bytes;
    cd_gradient_parameter *parameters; /* (parameter_count) */
    uint64_t *offsets;                 /* (parameter_count) of its values within a row */
} cd_gradient_file;

/* The one of a rank, in the folder of a recording. */
cddp_status cd_gradient_file_open(cd_gradient_file *file, const char *folder, uint32_t rank,
                                  const cddp_allocator *allocator, cddp_error *err) CDDP_MUST_CHECK;
int64_t cd_gradient_file_numel(const cd_gradient_file *file, uint32_t parameter);
/* The values that the parameter began with, in its dtype. */
cddp_status cd_gradient_file_read_initial(const cd_gradient_file *file, uint32_t parameter,
                                          void *values, cddp_error *err) CDDP_MUST_CHECK;
/* Which parameters got a gradient in a backward. present: (parameter_count). */
cddp_status cd_gradient_file_read_present(const cd_gradient_file *file, int64_t row,
                                          unsigned char *present, cddp_error *err) CDDP_MUST_CHECK;
/* Its gradient, exactly, as f64. */
cddp_status cd_gradient_file_read(const cd_gradient_file *file, int64_t row, uint32_t parameter,
                                  double *values, cddp_error *err) CDDP_MUST_CHECK;
/* Does it have the same parameters? Otherwise says which one differs. */
cddp_status cd_gradient_file_compare(const cd_gradient_file *a, const cd_gradient_file *b,
                                     cddp_error *err) CDDP_MUST_CHECK;
void cd_gradient_file_close(cd_gradient_file *file); /* accepts a zeroed one */
