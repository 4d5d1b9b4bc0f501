#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's PowerSGD hook under its DDP over Gloo: what it makes of injected gradients, and how far another
implementation that begins with the same random factors may be from it; for powersgd_test.c to repeat.

Rank 1, 2, 4 × warm start × error feedback, two vanilla backwards, then 20 compressed ones. Printed per configuration: every
factor that PyTorch drew, every gradient that came out, and a bound on the difference for each.

The bound. One backward of one matrix is a smooth map of what is remembered (errors e_r, factor Q) and of the rounding errors
made on the way. Rounding errors are bounded where they are made, from the numbers there (stages below):

    A_r = M_r + e_r          u|A|
    Q^  = orth(Q)            ours: f64, then u|Q^|; PyTorch's: measured, each call against f64
    P   = Σ A_r·Q^           γ(m + W - 1) Σ|A_r||Q^|, whatever the order of the additions
    P^  = orth(P)            as Q^
    Q'  = (Σ A_rᵀ·P^) / W    γ(n + W) Σ|A_r|ᵀ|P^| / W
    out = P^·Q'ᵀ             γ(r) |P^||Q'|ᵀ
    e_r = A_r - out          u|e_r|

The derivatives of the map are taken along the trajectory in f64 (autograd); a product of them carries every rounding error of
every backward forward to each later output, where the absolute values are added up. That is the whole effect to first order,
for each implementation against the exact trajectory; the distance between both is at most the sum. What is of second order enters
where P and Q are made orthonormal, twice per backward, and is smaller there by 4·ρ, ρ the relative change δ/σ_min of the
matrix: 8·ρ is added for it, with the largest ρ met, which is printed and must stay below 1/64.
"""
import torch
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as psgd
from torch.nn.parallel import DistributedDataParallel

from ranks import constants, run_ranks

START, COMPRESSED = 2, 20
SHAPES = [(8, 6), (5,), (6, 2, 2, 2)]
UNIT = 2.0**-24


def gradient(rank, step, i):
    return (constants(rank, step, 0, i, torch.Size(SHAPES[i]).numel(), False) - 1).view(SHAPES[i])


def gamma(k):
    return k * UNIT / (1 - k * UNIT)


def orth(matrix):
    """Gram-Schmidt, differentiable; columns may have the other sign than a Householder factor."""
    columns = []
    for j in range(matrix.shape[1]):
        v = matrix[:, j]
        for _ in range(2):
            for c in columns:
                v = v - (c @ v) * c
        columns.append(v / v.norm())
    return torch.stack(columns, 1)


class Watched:
    """PyTorch's random factors, and how far each of its orthogonalisations is from the exact one, by shape of the matrix."""

    def __init__(self):
        self.factors, self.off = {}, {}
        randn, orthogonalize = torch.randn, psgd._orthogonalize

        def drawing(*shape, **options):
            q = randn(*shape, **options)
            self.factors.setdefault(tuple(shape[1:]), []).append(q[0].clone())
            return q

        def measuring(matrices, epsilon=0):
            exact = orth(matrices[0].double())
            orthogonalize(matrices, epsilon)
            made = matrices[0].double()
            made = made * torch.sign((made * exact).sum(0))
            self.off.setdefault(tuple(made.shape), []).append((made - exact).abs())

        self.undo = (randn, orthogonalize)
        torch.randn, psgd._orthogonalize = drawing, measuring

    def end(self):
        torch.randn, psgd._orthogonalize = self.undo


class Whole(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.p = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(s)) for s in SHAPES])

    def forward(self, c):
        return sum((p * g).sum() for p, g in zip(self.p, c))


class Flat:
    """One tensor's way through a compressed backward, in f64: a map of what is remembered and of rounding errors.

    x is (e_1 … e_W, Q), eta the rounding errors stage by stage; the uncompressed vector has neither Q nor P."""

    def __init__(self, c, shape):
        self.world, self.rank, self.keeps_q, self.keeps_e = c["world"], c["rank"], c["warm_start"], c["feedback"]
        self.n = shape[0]
        self.m = torch.Size(shape).numel() // shape[0]
        self.low = len(shape) > 1
        self.e_numel = self.world * self.n * self.m
        r = self.rank if self.low else 0
        self.parts = [self.e_numel, self.m * r, self.n * r, self.n * r, self.m * r, self.n * self.m, self.e_numel]
        self.q_numel = self.m * r

    def step(self, x, eta, given, q_new):
        W, n, m, r = self.world, self.n, self.m, self.rank
        a_off, qh_off, p_off, ph_off, q_off, out_off, e_off = torch.split(eta, self.parts)
        a = given + x[:self.e_numel].view(W, n, m) + a_off.view(W, n, m)
        if not self.low:
            out = a.mean(0) + out_off.view(n, m)
            e = (a - out + e_off.view(W, n, m)) * self.keeps_e
            self.seen = {"a": a, "out": out, "e": e}
            return torch.cat([e.flatten(), out.flatten()])
        start = q_new if q_new is not None else x[self.e_numel:].view(m, r)
        qh = orth(start) + qh_off.view(m, r)
        p = (a @ qh).sum(0) + p_off.view(n, r)
        ph = orth(p) + ph_off.view(n, r)
        q = (a.transpose(1, 2) @ ph).mean(0) + q_off.view(m, r)
        out = ph @ q.T + out_off.view(n, m)
        e = (a - out + e_off.view(W, n, m)) * self.keeps_e
        self.seen = {"a": a, "start": start, "qh": qh, "p": p, "ph": ph, "q": q, "out": out, "e": e}
        return torch.cat([e.flatten(), q.flatten(), out.flatten(), p.flatten()])

    def rounding(self, orth_off):
        """Bounds of both implementations' rounding errors at this place of the trajectory."""
        s, W = self.seen, self.world
        rows = []
        for theirs in (False, True):
            a = UNIT * s["a"].abs()
            e = UNIT * s["e"].abs()
            if not self.low:
                rows.append([a, gamma(W) * s["a"].abs().mean(0), e])
                continue
            made = []
            for key, before in (("qh", "start"), ("ph", "p")):
                condition = torch.linalg.cond(s[before])
                ours = UNIT * s[key].abs() + 2.0**-53 * 64 * self.rank * condition
                made.append(orth_off[key] if theirs else ours)
            p = gamma(self.m + W - 1) * (s["a"].abs() @ s["qh"].abs()).sum(0)
            q = gamma(self.n + W) * (s["a"].abs().transpose(1, 2) @ s["ph"].abs()).mean(0)
            out = gamma(self.rank) * s["ph"].abs() @ s["q"].abs().T
            rows.append([a, made[0], p, made[1], q, out, e])
        return [torch.cat([t.flatten() for t in row]) for row in rows]


def bounds(c, i, watched):
    """Per compressed backward the largest bound of the output's elements; and the largest relative change ρ met."""
    shape = SHAPES[i]
    f = Flat(c, shape)
    offs = {key: list(watched.off[side, c["rank"]]) if f.low else [] for key, side in (("qh", f.m), ("ph", f.n))}
    x = torch.zeros(f.e_numel + f.q_numel, dtype=torch.float64)
    eta = torch.zeros(sum(f.parts), dtype=torch.float64)
    carried = [torch.zeros(len(x), 0, dtype=torch.float64)] * 2  # ∂x / ∂(rounding errors so far), each times its bound
    found, relative = [], 0.0
    for t in range(COMPRESSED):
        given = torch.stack([gradient(r, START + t, i).double().view(f.n, f.m) for r in range(f.world)])
        q_new = watched.factors[f.m, f.rank][t].double() if f.low and (t == 0 or not f.keeps_q) else None
        by_x, by_eta = torch.autograd.functional.jacobian(lambda x, e: f.step(x, e, given, q_new), (x, eta), vectorize=True)
        after = f.step(x, eta, given, q_new).detach()
        rounding = f.rounding({key: off[t] for key, off in offs.items()} if f.low else None)
        both = 0
        for side in range(2):
            spread = torch.cat([by_x @ carried[side], by_eta * rounding[side]], 1)
            carried[side] = spread[:len(x)]
            both = both + spread.abs().sum(1)
        e_end, q_end, out_end = f.e_numel, len(x), len(x) + f.n * f.m
        if f.low:
            relative = max(relative, float(both[out_end:].norm() / torch.linalg.svdvals(f.seen["p"])[-1]),
                           float(both[e_end:q_end].norm() / torch.linalg.svdvals(f.seen["q"])[-1]))
        assert relative < 1 / 64
        found.append(float(both[q_end:out_end].max()) * (1 + 8 * relative))
        x = after[:len(x)]
        exact = after[q_end:out_end].view(shape)
        assert float((exact - c["out"][START + t][i].double()).abs().max()) <= found[-1], "PyTorch's own result is beyond its bound"
    return found, relative


def train(c, rank):
    watched = Watched()
    module = Whole()
    ddp = DistributedDataParallel(module)
    state = psgd.PowerSGDState(None, matrix_approximation_rank=c["rank"], start_powerSGD_iter=START, min_compression_rate=0.85,
                               use_error_feedback=c["feedback"], warm_start=c["warm_start"])
    ddp.register_comm_hook(state, psgd.powerSGD_hook)
    c["out"] = []
    for step in range(START + COMPRESSED):
        ddp.zero_grad(set_to_none=True)
        ddp([gradient(rank, step, i) for i in range(len(SHAPES))]).backward()
        c["out"].append([p.grad.clone() for p in module.p])
    watched.end()
    return watched


def bits_of(tensor):
    return " ".join("%08x" % (bits & 0xFFFFFFFF) for bits in tensor.flatten().view(torch.int32).tolist())


def run(rank, world):
    for number in range(12):
        c = {"rank": [1, 2, 4][number % 3], "warm_start": number // 3 % 2 == 1, "feedback": number // 6 == 1, "world": 2 + (number % 3 + number // 3 + number // 6) % 2}
        if c["world"] != world:
            continue
        watched = train(c, rank)
        if rank != 0:
            continue
        print("configuration %d world %d rank %d warm_start %d feedback %d steps %d start %d" % (
            number, world, c["rank"], c["warm_start"], c["feedback"], START + COMPRESSED, START))
        all_bounds = [bounds(c, i, watched) for i in range(len(SHAPES))]
        print("relative %.3g" % max(relative for _, relative in all_bounds))
        for key, drawn in sorted(watched.factors.items()):
            for t, q in enumerate(drawn):
                print("factor %d %d %s" % (START + t, key[0], bits_of(q)))
        for step in range(START + COMPRESSED):
            for i in range(len(SHAPES)):
                bound = all_bounds[i][0][step - START] if step >= START else 0.0
                print("out %d %d %s %s" % (step, i, bound.hex(), bits_of(c["out"][step][i])))


for world in (2, 3):
    run_ranks(world, run)
