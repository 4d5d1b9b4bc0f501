#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes optimizers.txt: what PyTorch's optimizers, clipping, loss scaler and schedules compute.

Inputs are small dyadic numbers from a formula that optimizers_test.c repeats, so only results are stored, as
hexadecimal floats. ATEN_CPU_CAPABILITY=default keeps PyTorch from fusing multiply and add, which would make its
own bits depend on the processor; without fusion every operation is rounded once, as ours is.
"""
import os
import sys

os.environ["ATEN_CPU_CAPABILITY"] = "default"
import torch  # noqa: E402

torch.set_num_threads(1)
SHAPES = [(5, 7), (11,)]
STEPS = 6


def pattern(index, salt):
    return ((index * 37 + salt * 101) % 64 - 31) / 16


def tensor(shape, salt, dtype):
    numel = 1
    for size in shape:
        numel *= size
    return torch.tensor([pattern(i, salt) for i in range(numel)], dtype=dtype).reshape(shape)


def has_gradient(parameter, step):
    """The second parameter has no gradient in the first step and in the fourth."""
    return parameter == 0 or step not in (0, 3)


def line(*fields):
    print(" ".join(fields))


def numbers(t):
    return [float(x).hex() for x in t.detach().double().flatten().tolist()]


CASES = [
    ("sgd", torch.optim.SGD, dict(lr=0.1)),
    ("sgd_momentum", torch.optim.SGD, dict(lr=0.1, momentum=0.9)),
    ("sgd_dampening", torch.optim.SGD, dict(lr=0.1, momentum=0.9, dampening=0.3)),
    ("sgd_nesterov", torch.optim.SGD, dict(lr=0.1, momentum=0.9, nesterov=True)),
    ("sgd_decay", torch.optim.SGD, dict(lr=0.1, weight_decay=0.05)),
    ("sgd_everything", torch.optim.SGD, dict(lr=0.1, momentum=0.7, nesterov=True, weight_decay=0.05, maximize=True)),
    ("adam", torch.optim.Adam, dict(lr=0.01)),
    ("adam_decay", torch.optim.Adam, dict(lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)),
    ("adam_amsgrad", torch.optim.Adam, dict(lr=0.01, amsgrad=True, maximize=True)),
    ("adamw", torch.optim.AdamW, dict(lr=0.01)),
    ("adamw_decay", torch.optim.AdamW, dict(lr=0.01, weight_decay=0.3, amsgrad=True)),
    ("adagrad", torch.optim.Adagrad, dict(lr=0.1)),
    ("adagrad_decay", torch.optim.Adagrad, dict(lr=0.1, lr_decay=0.2, weight_decay=0.1, initial_accumulator_value=0.5)),
]
SLOTS = {
    torch.optim.SGD: ["momentum_buffer"],
    torch.optim.Adam: ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"],
    torch.optim.AdamW: ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"],
    torch.optim.Adagrad: ["sum"],
}
DTYPES = [("f32", torch.float32), ("f64", torch.float64)]


def run_case(name, kind, options, dtype_name, dtype):
    parameters = [torch.nn.Parameter(tensor(s, i, dtype)) for i, s in enumerate(SHAPES)]
    optimizer = kind(parameters, **options)
    for step in range(STEPS):
        for i, p in enumerate(parameters):
            p.grad = tensor(p.shape, 10 + step * 3 + i, dtype) if has_gradient(i, step) else None
        optimizer.step()
    for i, p in enumerate(parameters):
        line("value", name, dtype_name, str(i), *numbers(p))
        for slot in SLOTS[kind]:
            state = optimizer.state[p].get(slot)
            if state is not None:
                line("slot", name, dtype_name, str(i), slot, *numbers(state))


def run_sparse(name, kind, options, dtype_name, dtype):
    parameter = torch.nn.Parameter(tensor((8, 3), 1, dtype))
    optimizer = kind([parameter], **options)
    for step in range(3):
        rows = [[0, 2, 7], [2, 3], [0, 1, 2, 7]][step]
        values = tensor((len(rows), 3), 20 + step, dtype)
        parameter.grad = torch.sparse_coo_tensor([rows], values, (8, 3)).coalesce()
        optimizer.step()
    line("sparse", name, dtype_name, *numbers(parameter))


def run_clip(dtype_name, dtype):
    for max_norm in (1.0, 100.0, 0.25):
        parameters = [torch.nn.Parameter(tensor(s, i, dtype)) for i, s in enumerate(SHAPES)]
        for i, p in enumerate(parameters):
            p.grad = tensor(p.shape, 30 + i, dtype)
        total = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        line("clip", dtype_name, float(max_norm).hex(), float(total).hex(), *numbers(parameters[0].grad))


# name, initial scale, growth, backoff, interval. Powers of two; factors that round; the largest f32 scale, which does not
# grow; one that goes down into the subnormal numbers.
SCALERS = [("powers", 65536.0, 2.0, 0.5, 3), ("rounding", 1000.0, 1.7, 0.3, 2), ("largest", 2.0**127, 2.0, 0.5, 1),
           ("smallest", 1.5e-38, 2.0, 0.25, 4)]
SCALER_SHAPES = [[(5,)], [(4,), (3,)]]  # of two optimizers
SCALER_STEPS = 14


class Replicated:
    """The scaler's own class of this kind insists on CUDA."""

    def __init__(self, master):
        self.master, self._per_device_tensors = master, {}

    def get(self, device):
        self._per_device_tensors[device] = self.master
        return self.master


def check_and_unscale(grads, found_inf, inverse):
    for g in grads:
        if not torch.isfinite(g).all():
            found_inf.fill_(1.0)
        g.mul_(inverse.to(g.dtype))


def update_scale(scale, tracker, found_inf, growth, backoff, interval):
    if found_inf.item():
        scale.copy_(scale.double() * backoff)
        tracker.zero_()
    elif tracker.item() + 1 == interval:
        grown = (scale.double() * growth).float()
        if torch.isfinite(grown):
            scale.copy_(grown)
        tracker.zero_()
    else:
        tracker.add_(1)


def make_scaler(init, growth, backoff, interval):
    """GradScaler as it stands in 1.13, its stages and its book-keeping. Its two kernels exist for CUDA only there; what stands in
    for them does what they do, operation by operation, in PyTorch's arithmetic on the CPU."""
    from torch.cuda.amp import grad_scaler

    grad_scaler._MultiDeviceReplicator = Replicated
    torch._amp_foreach_non_finite_check_and_unscale_ = check_and_unscale
    torch._amp_update_scale_ = update_scale
    available, torch.cuda.is_available = torch.cuda.is_available, lambda: True
    scaler = grad_scaler.GradScaler(init, growth, backoff, interval)
    torch.cuda.is_available = available
    scaler._lazy_init_scale_growth_tracker(torch.device("cpu"))
    return scaler


def spoil(step, which, grad):
    """The first optimizer's gradients overflow in steps 3 and 8, the second's are no numbers in 6 and 8."""
    if which == 0 and step in (3, 8):
        grad[1] = float("inf")
    if which == 1 and step in (6, 8):
        grad[2] = float("nan")


def run_scaler(name, *settings):
    scaler = make_scaler(*settings)
    parameters = [[torch.nn.Parameter(tensor(s, 10 * k + i, torch.float32)) for i, s in enumerate(shapes)]
                  for k, shapes in enumerate(SCALER_SHAPES)]
    optimizers = [torch.optim.SGD(p, lr=0.1) for p in parameters]
    for step in range(SCALER_STEPS):
        found = []
        for k, optimizer in enumerate(optimizers):
            for i, p in enumerate(parameters[k]):
                # The last parameter has no gradient in the odd steps.
                p.grad = None if i == 1 and step % 2 else tensor(p.shape, 40 + 5 * step + 10 * k + i, torch.float32) * scaler._scale
            spoil(step, k, parameters[k][0].grad)
            scaler.unscale_(optimizer)
            line("unscaled", name, str(step), str(k), *numbers(parameters[k][0].grad))
            scaler.step(optimizer)
            found.append(str(int(sum(f.item() for f in scaler._found_inf_per_device(optimizer).values()))))
        scaler.update()
        line("scaled", name, str(step), float(scaler.get_scale()).hex(), str(scaler._get_growth_tracker()), *found)
    for k in range(2):
        for i, p in enumerate(parameters[k]):
            line("stepped", name, str(k), str(i), *numbers(p))


def run_schedules():
    def rates(make, steps):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
        schedule = make(optimizer)
        out = []
        for _ in range(steps):
            out.append(optimizer.param_groups[0]["lr"].hex())
            optimizer.step()
            schedule.step()
        return out

    s = torch.optim.lr_scheduler
    line("rates", "step", *rates(lambda o: s.StepLR(o, step_size=4, gamma=0.3), 14))
    line("rates", "cosine", *rates(lambda o: s.CosineAnnealingLR(o, T_max=10, eta_min=0.01), 14))
    line("rates", "linear", *rates(lambda o: s.LinearLR(o, start_factor=0.125, total_iters=5), 14))


def main():
    line("# made by optimizers.py with torch", torch.__version__)
    for dtype_name, dtype in DTYPES:
        for name, kind, options in CASES:
            run_case(name, kind, options, dtype_name, dtype)
        run_sparse("sgd", torch.optim.SGD, dict(lr=0.1), dtype_name, dtype)
        run_sparse("adagrad", torch.optim.Adagrad, dict(lr=0.1, lr_decay=0.1), dtype_name, dtype)
        run_clip(dtype_name, dtype)
    run_schedules()
    for settings in SCALERS:
        run_scaler(*settings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
