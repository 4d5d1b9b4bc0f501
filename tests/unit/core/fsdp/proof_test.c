/* SPDX-License-Identifier: Apache-2.0 */
/* For all parameters and all gradients: on the device `symbol` an element is an exact linear form.
** What forward computes with is what was wrapped, and what an optimizer gets is the mean. */
#include "core/tensor/symbol.h"
#include "tests/unit/core/fsdp/fixture.h"

typedef struct mode {
    cddp_fsdp_strategy strategy;
    cddp_fsdp_layout layout;
    cddp_fsdp_prefetch prefetch;
    int micro_steps; /* the last one reduces */
} mode;

static cd_atom atom_of(cd_atom_kind kind, size_t source, uint32_t rank, uint32_t micro)
{
    return (cd_atom){.kind = kind, .source = (uint32_t)source, .rank = rank, .micro_step = micro};
}

static void write_atoms(lane *l, const cddp_tensor *t, cd_atom atom)
{
    CHECK_OK(cd_symbol_write_atoms(t, &atom, &l->err));
}

/* Element e of the view is Σ coefficient · atom[first + e]. */
static void check_form(lane *l, const cddp_tensor *t, cd_term *terms, size_t count, int64_t first)
{
    cd_symbol_difference difference;
    const cd_form form = {count, terms};
    for (size_t i = 0; i < count; i++) {
        terms[i].element = first;
        terms[i].advance = 1;
    }
    CHECK_OK(cd_symbol_compare(t, &form, &difference, &l->err));
    CHECK(difference.index == -1);
}

static void check_parameters(lane *l, const cddp_fsdp *f, uint32_t unit)
{
    for (size_t i = 0; i < TOY_PARAMETERS; i++) {
        if (toy_unit(i) != unit) continue;
        cd_term whole = {.atom = atom_of(CD_ATOM_PARAMETER, i, 0, 0), .coefficient = {1, 1}};
        check_form(l, cddp_fsdp_parameter(f, i), &whole, 1, 0);
    }
}

static void accumulate(toy *t, uint32_t unit, uint32_t micro)
{
    lane *l = t->l;
    CHECK_OK(cddp_fsdp_pre_backward(t->fsdp, unit, &l->err));
    check_parameters(l, t->fsdp, unit);
    for (size_t i = 0; i < TOY_PARAMETERS; i++) {
        if (toy_unit(i) != unit) continue;
        const bool fresh = l->grads[i].kind == CDDP_GRAD_UNDEFINED;
        const cddp_tensor *place = &l->ones[i];
        CHECK_OK(cddp_grad_define(&l->grads[i], cddp_fsdp_parameter(t->fsdp, i), &l->err));
        if (fresh) place = &l->grads[i].value;
        write_atoms(l, place, atom_of(CD_ATOM_GRADIENT, i, l->r, micro));
        if (!fresh) {
            const int64_t numel = toy_numel(i);
            cddp_tensor flat = cddp_tensor_slice(&l->grads[i].value, 0, numel);
            CHECK_OK(l->device->axpy(&flat, 1.0, place, NULL, &l->err));
        }
    }
    CHECK_OK(cddp_fsdp_post_backward(t->fsdp, unit, &l->err));
}

static void check_means(toy *t, int micro_steps)
{
    lane *l = t->l;
    for (size_t i = 0; i < TOY_PARAMETERS; i++) {
        cddp_fsdp_piece piece = {.size = sizeof piece};
        cd_term terms[CD_FORM_TERMS_MAX];
        size_t count = 0;
        CHECK_OK(cddp_fsdp_get_piece(t->fsdp, i, &piece, &l->err));
        if (piece.count == 0) continue;
        for (uint32_t r = 0; r < l->w; r++)
            for (int m = 0; m < micro_steps; m++)
                terms[count++] = (cd_term){.atom = atom_of(CD_ATOM_GRADIENT, i, r, (uint32_t)m),
                                           .coefficient = {1, l->w}};
        check_form(l, &piece.gradient.value, terms, count, piece.first);
        cd_term own = {.atom = atom_of(CD_ATOM_PARAMETER, i, 0, 0), .coefficient = {1, 1}};
        check_form(l, &piece.tensor, &own, 1, piece.first);
    }
}

static void proves(lane *l)
{
    const mode *m = l->lab->data;
    toy t = {.l = l, .options = cddp_fsdp_options_default()};
    for (size_t i = 0; i < TOY_PARAMETERS; i++) {
        cddp_parameter *p = lane_add(l, toy_shapes[i].name, CDDP_F32, toy_numel(i));
        p->tensor = cddp_tensor_of(l->device, p->tensor.storage, 0, CDDP_F32, toy_shapes[i].sizes,
                                   toy_shapes[i].dims);
        write_atoms(l, &p->tensor, atom_of(CD_ATOM_PARAMETER, i, 0, 0));
    }
    t.options.parameters = l->parameters;
    t.options.parameter_count = l->count;
    t.options.group = l->group;
    t.options.wrap.kind = CDDP_FSDP_WRAP_ALWAYS;
    t.options.strategy = m->strategy;
    t.options.layout = m->layout;
    t.options.backward_prefetch = m->prefetch;
    CHECK_OK(toy_try_wrap(&t));
    for (int micro = 0; micro < m->micro_steps; micro++) {
        const bool is_last = micro + 1 == m->micro_steps;
        if (!is_last) CHECK_OK(cddp_fsdp_no_sync_begin(t.fsdp, &l->err));
        CHECK_OK(cddp_fsdp_pre_forward(t.fsdp, TOY_ROOT, true, &l->err));
        for (uint32_t k = TOY_A; k < TOY_UNITS; k++) {
            CHECK_OK(cddp_fsdp_pre_forward(t.fsdp, k, true, &l->err));
            check_parameters(l, t.fsdp, k);
            CHECK_OK(cddp_fsdp_post_forward(t.fsdp, k, true, &l->err));
        }
        check_parameters(l, t.fsdp, TOY_ROOT);
        CHECK_OK(cddp_fsdp_post_forward(t.fsdp, TOY_ROOT, true, &l->err));
        for (uint32_t k = TOY_UNITS; k-- > 0;) accumulate(&t, k, (uint32_t)micro);
        CHECK_OK(cddp_fsdp_backward_end(t.fsdp, &l->err));
        if (!is_last) CHECK_OK(cddp_fsdp_no_sync_end(t.fsdp, &l->err));
    }
    check_means(&t, m->micro_steps);
    toy_fini(&t);
}

TEST(proof, gradients_are_means_and_parameters_are_whole) /* FSD-06, FSD-11, FPM-02 */
{
    for (uint32_t world = 1; world <= 5; world++) {
        for (int i = 0; i < 3 * 2 * 2 * 2; i++) {
            mode m = {.strategy = (cddp_fsdp_strategy)(i % 3),
                      .layout = (cddp_fsdp_layout)(i / 3 % 2),
                      .prefetch = i / 6 % 2 == 0 ? CDDP_FSDP_BACKWARD_PRE : CDDP_FSDP_BACKWARD_POST,
                      .micro_steps = i / 12 + 1};
            lab b = {.world_size = world,
                     .body = proves,
                     .data = &m,
                     .device = cddp_device_symbol()};
            cd_test_row("W %u, strategy %d, layout %d, prefetch %d, %d micro-steps", world,
                        (int)m.strategy, (int)m.layout, (int)m.prefetch, m.micro_steps);
            lab_run(&b);
        }
    }
}

TEST_MAIN()
