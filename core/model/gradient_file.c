/* SPDX-License-Identifier: Apache-2.0 */
/* Head of 64 bytes, a description of each parameter, its initial values, then rows of equal size:
** a byte per parameter, then values. Everything begins at a multiple of 8.
**
** A row that was being written when its process was killed is none.
*/
#include "core/model/gradient_file.h"

#include "core/base/alloc.h"
#include "core/base/error.h"
#include "core/base/os.h"
#include "core/tensor/cpu.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define MAGIC UINT64_C(0x6461726770646463) /* "cddpgrad" */
#define VERSION 1u
#define PARAMETERS_MAX 65536u
#define NUMEL_MAX (INT64_C(1) << 40)

typedef struct head {
    uint64_t magic;
    uint32_t version, rank, world_size, parameter_count;
    uint64_t initial_begin, row_begin, row_bytes, reserved[2];
} head;

static uint64_t rounded(uint64_t bytes) { return (bytes + 7) & ~UINT64_C(7); }

int64_t cd_gradient_file_numel(const cd_gradient_file *f, uint32_t parameter)
{
    const cd_gradient_parameter *p = &f->parameters[parameter];
    int64_t numel = 1;
    for (uint32_t i = 0; i < p->dim_count; i++) numel *= p->sizes[i];
    return numel;
}

static cddp_status refuse(const cd_gradient_file *f, const char *why, cddp_error *err)
{
    return cd_fail(err, CDDP_E_CORRUPT, "'%s' %s", f->path, why);
}

static cddp_status read_at(const cd_gradient_file *f, uint64_t at, void *bytes, size_t byte_count,
                           cddp_error *err)
{
    FILE *file = NULL;
    if (byte_count == 0) return CDDP_OK;
    CD_TRY(cd_os_open_regular(f->path, &file, err));
    const bool is_read =
        fseek(file, (long)at, SEEK_SET) == 0 && fread(bytes, 1, byte_count, file) == byte_count;
    const int problem = ferror(file) ? errno : 0;
    fclose(file);
    if (is_read) return CDDP_OK;
    if (problem != 0)
        return cd_fail(err, CDDP_E_IO, "cannot read '%s': %s", f->path, strerror(problem));
    return CD_PASS(refuse(f, "ends too early", err));
}

static cddp_status find_length(const cd_gradient_file *f, uint64_t *bytes, cddp_error *err)
{
    FILE *file = NULL;
    CD_TRY(cd_os_open_regular(f->path, &file, err));
    const long end = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    fclose(file);
    if (end < 0) return cd_fail(err, CDDP_E_IO, "cannot read '%s'", f->path);
    *bytes = (uint64_t)end;
    return CDDP_OK;
}

static bool is_sound(const cd_gradient_parameter *p)
{
    int64_t numel = 1;
    if (memchr(p->name, 0, sizeof p->name) == NULL || p->name[0] == '\0') return false;
    if (!cddp_dtype_is_float((cddp_dtype)p->dtype) || p->dim_count > CDDP_DIMS_MAX) return false;
    for (uint32_t i = 0; i < p->dim_count; i++) {
        if (p->sizes[i] < 0 || p->sizes[i] > NUMEL_MAX) return false;
        if (p->sizes[i] > 0 && numel > NUMEL_MAX / p->sizes[i]) return false;
        numel *= p->sizes[i];
    }
    return true;
}

/* Where each parameter's values are in a row, and whether rows are as long as the head says. */
static cddp_status place(cd_gradient_file *f, const head *h, cddp_error *err)
{
    uint64_t at = rounded(f->parameter_count);
    for (uint32_t i = 0; i < f->parameter_count; i++) {
        if (!is_sound(&f->parameters[i]))
            return CD_PASS(refuse(f, "describes a parameter that cannot be", err));
        f->offsets[i] = at;
        at += rounded((uint64_t)cd_gradient_file_numel(f, i) *
                      cddp_dtype_bytes((cddp_dtype)f->parameters[i].dtype));
    }
    const uint64_t described =
        sizeof *h + (uint64_t)f->parameter_count * sizeof(cd_gradient_parameter);
    if (h->initial_begin != described || h->row_bytes != at ||
        h->row_begin != described + at - rounded(f->parameter_count))
        return CD_PASS(refuse(f, "has rows of another size than its parameters", err));
    return CDDP_OK;
}

static cddp_status read_head(cd_gradient_file *f, uint32_t rank, cddp_error *err)
{
    head h = {0};
    uint64_t bytes = 0;
    CD_TRY(find_length(f, &bytes, err));
    if (bytes < sizeof h) return CD_PASS(refuse(f, "is no file of gradients", err));
    CD_TRY(read_at(f, 0, &h, sizeof h, err));
    if (h.magic != MAGIC) return CD_PASS(refuse(f, "is no file of gradients", err));
    if (h.version != VERSION)
        return cd_fail(err, CDDP_E_CORRUPT, "'%s' has version %u, this program reads %u", f->path,
                       (unsigned)h.version, VERSION);
    if (h.rank != rank || h.world_size <= rank || h.parameter_count == 0 ||
        h.parameter_count > PARAMETERS_MAX)
        return CD_PASS(refuse(f, "is of another rank, or has no parameters", err));
    f->rank = rank;
    f->world_size = h.world_size;
    f->parameter_count = h.parameter_count;
    f->parameters = cd_allocate(f->allocator, f->parameter_count * sizeof *f->parameters);
    f->offsets = cd_allocate(f->allocator, f->parameter_count * sizeof *f->offsets);
    if (f->parameters == NULL || f->offsets == NULL)
        return cd_fail_memory(err, "the gradients of rank %u", rank);
    CD_TRY(read_at(f, sizeof h, f->parameters, f->parameter_count * sizeof *f->parameters, err));
    CD_TRY(place(f, &h, err));
    if (bytes < h.row_begin) return CD_PASS(refuse(f, "ends too early", err));
    f->row_begin = h.row_begin;
    f->row_bytes = h.row_bytes;
    f->row_count = (int64_t)((bytes - h.row_begin) / h.row_bytes);
    return CDDP_OK;
}

cddp_status cd_gradient_file_open(cd_gradient_file *file, const char *folder, uint32_t rank,
                                  const cddp_allocator *allocator, cddp_error *err)
{
    cd_gradient_file f = {.allocator = allocator};
    const int n = snprintf(f.path, sizeof f.path, "%s/rank.%u.gradients", folder, (unsigned)rank);
    if (n < 0 || n >= (int)sizeof f.path)
        return cd_fail(err, CDDP_E_LIMIT, "the path '%.60s…' is too long", folder);
    if (cd_os_is_absent(f.path))
        return cd_fail(err, CDDP_E_IO, "'%s' is not there: record with --gradients, on every rank",
                       f.path);
    const cddp_status status = read_head(&f, rank, err);
    if (status != CDDP_OK) {
        cd_gradient_file_close(&f);
        return CD_PASS(status);
    }
    *file = f;
    return CDDP_OK;
}

cddp_status cd_gradient_file_read_initial(const cd_gradient_file *f, uint32_t parameter,
                                          void *values, cddp_error *err)
{
    const size_t bytes = (size_t)cd_gradient_file_numel(f, parameter) *
                         cddp_dtype_bytes((cddp_dtype)f->parameters[parameter].dtype);
    const uint64_t begin = f->row_begin - (f->row_bytes - rounded(f->parameter_count));
    return CD_PASS(read_at(f, begin + f->offsets[parameter] - rounded(f->parameter_count), values,
                           bytes, err));
}

static cddp_status check_row(const cd_gradient_file *f, int64_t row, cddp_error *err)
{
    if (row >= 0 && row < f->row_count) return CDDP_OK;
    return cd_fail(err, CDDP_E_CONFIG,
                   "'%s' has the gradients of %lld backwards; number %lld is asked for", f->path,
                   (long long)f->row_count, (long long)row + 1);
}

cddp_status cd_gradient_file_read_present(const cd_gradient_file *f, int64_t row,
                                          unsigned char *present, cddp_error *err)
{
    CD_TRY(check_row(f, row, err));
    return CD_PASS(
        read_at(f, f->row_begin + (uint64_t)row * f->row_bytes, present, f->parameter_count, err));
}

cddp_status cd_gradient_file_read(const cd_gradient_file *f, int64_t row, uint32_t parameter,
                                  double *values, cddp_error *err)
{
    const cddp_dtype dtype = (cddp_dtype)f->parameters[parameter].dtype;
    const int64_t numel = cd_gradient_file_numel(f, parameter);
    const size_t bytes = (size_t)numel * cddp_dtype_bytes(dtype);
    const uint64_t at = f->row_begin + (uint64_t)row * f->row_bytes + f->offsets[parameter];
    CD_TRY(check_row(f, row, err));
    if (dtype == CDDP_F64) return CD_PASS(read_at(f, at, values, bytes, err));
    void *raw = cd_allocate(f->allocator, bytes + 1);
    if (raw == NULL) return cd_fail_memory(err, "the gradients of rank %u", (unsigned)f->rank);
    cddp_status status = read_at(f, at, raw, bytes, err);
    if (status == CDDP_OK && numel > 0) {
        const cddp_device *cpu = cddp_device_cpu();
        const cddp_tensor from = cddp_tensor_of(cpu, raw, 0, dtype, &numel, 1);
        const cddp_tensor to = cddp_tensor_of(cpu, values, 0, CDDP_F64, &numel, 1);
        status = cpu->copy(&to, &from, NULL, err);
    }
    cd_release(f->allocator, raw, bytes + 1);
    return CD_PASS(status);
}

cddp_status cd_gradient_file_compare(const cd_gradient_file *a, const cd_gradient_file *b,
                                     cddp_error *err)
{
    if (a->world_size != b->world_size)
        return cd_fail(err, CDDP_E_CONFIG, "'%s' is of %u ranks, '%s' of %u", a->path,
                       (unsigned)a->world_size, b->path, (unsigned)b->world_size);
    if (a->parameter_count != b->parameter_count)
        return cd_fail(err, CDDP_E_CONFIG, "'%s' has %u parameters, '%s' %u", a->path,
                       (unsigned)a->parameter_count, b->path, (unsigned)b->parameter_count);
    for (uint32_t i = 0; i < a->parameter_count; i++) {
        const cd_gradient_parameter *p = &a->parameters[i], *q = &b->parameters[i];
        if (strcmp(p->name, q->name) == 0 && p->dtype == q->dtype && p->dim_count == q->dim_count &&
            memcmp(p->sizes, q->sizes, p->dim_count * sizeof *p->sizes) == 0)
            continue;
        return cd_fail(err, CDDP_E_CONFIG,
                       "parameter %u is '%.60s' in '%s', and '%.60s' in '%s', or has another "
                       "shape or dtype there",
                       (unsigned)i, p->name, a->path, q->name, b->path);
    }
    return CDDP_OK;
}

void cd_gradient_file_close(cd_gradient_file *f)
{
    if (f->parameters != NULL)
        cd_release(f->allocator, f->parameters, f->parameter_count * sizeof *f->parameters);
    if (f->offsets != NULL)
        cd_release(f->allocator, f->offsets, f->parameter_count * sizeof *f->offsets);
    *f = (cd_gradient_file){0};
}
