#!/usr/bin/env python3
"""Records PyTorch's values for tests/golden/: every operation, one small model, optimizers and schedules.

usage: python3 scripts/record_golden.py [OUTPUT_DIR]            (needs torch >= 1.13 and numpy; Debian: python3-torch)
       python3 scripts/record_golden.py --samples [OUTPUT_DIR]  PyTorch's own samples (tests/golden/samples; torch 2.15,
                                                                expecttest; see golden_samples.py), one of each pattern
       python3 scripts/record_golden.py --all OUTPUT_DIR        all of them, for LOCKSTEP_TEST_SAMPLES=OUTPUT_DIR

Inputs are made here, deterministically, and stored beside the results, so that the tests need no Python.
"""

import pathlib
import sys

import numpy as np
import torch
import torch.nn.functional as F
from golden_cases import FAMILIES
from golden_libtorch import libtorch_programs
from golden_models import models
from golden_ported import ported
from golden_recorder import Golden, uniform
from golden_samples import record_samples


class LeNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 10, 5)
        self.conv2 = torch.nn.Conv2d(10, 20, 5)
        self.fc1 = torch.nn.Linear(320, 50)
        self.fc2 = torch.nn.Linear(50, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def model():
    """A checkpoint as a state dict would be saved, and what comes of it: logits, gradients, 10 training losses."""
    checkpoint, g = Golden(), Golden()
    net = LeNet().double()
    with torch.no_grad():
        for name, p in net.named_parameters():
            fan_in = p.shape[1:].numel() if p.dim() > 1 else 50
            values = uniform(name, p.shape) * np.float32(fan_in**-0.5)
            p.copy_(torch.from_numpy(values))
            checkpoint.tensors[name] = values
    images = uniform("images", (8, 1, 28, 28), -2, 3)
    labels = torch.arange(8) * 7 % 10
    g.put("batch", "images", images)
    g.put("batch", "labels", labels)
    x = torch.from_numpy(images).double()

    logits = net(x)
    F.cross_entropy(logits, labels).backward()
    g.put("first", "logits", logits)
    for name, p in net.named_parameters():
        g.put("first", f"grad.{name}", p.grad.float())

    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    g.put("training", "losses", np.array(losses))
    for name, p in net.named_parameters():
        g.put("training", f"norm.{name}", p.norm())
    return checkpoint, g


def optim():
    """Per optimizer: start [7], gradients [5, 7], parameters after each step [5, 7]. Per schedule: 20 learning rates."""
    g = Golden()
    optimizers = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
        "sgd_momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "sgd_nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        "sgd_weight_decay": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.05),
        "sgd_nesterov_weight_decay": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.05),
        "sgd_dampening": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3),
        "adam": lambda p: torch.optim.Adam(p, lr=0.01),
        "adam_betas": lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.8, 0.95), eps=1e-6),
        "adam_weight_decay": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
        "adamw_weight_decay": lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.3),
        "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.02),
        "rmsprop_momentum": lambda p: torch.optim.RMSprop(p, lr=0.02, alpha=0.9, momentum=0.7, weight_decay=0.1),
        "rmsprop_centered": lambda p: torch.optim.RMSprop(p, lr=0.02, centered=True),
        "rmsprop_centered_momentum": lambda p: torch.optim.RMSprop(p, lr=0.02, centered=True, momentum=0.5),
        "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
        "adagrad_decay": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.2, weight_decay=0.1),
        "nadam": lambda p: torch.optim.NAdam(p, lr=0.05),
        "nadam_decoupled": lambda p: torch.optim.NAdam(p, lr=0.05, betas=(0.8, 0.9), weight_decay=0.1, momentum_decay=0.1, decoupled_weight_decay=True),
        "radam": lambda p: torch.optim.RAdam(p, lr=0.05),
        "radam_adaptive": lambda p: torch.optim.RAdam(p, lr=0.05, betas=(0.8, 0.98), weight_decay=0.1),
        "radam_decoupled": lambda p: torch.optim.RAdam(p, lr=0.05, weight_decay=0.1, decoupled_weight_decay=True),
        "adamax": lambda p: torch.optim.Adamax(p, lr=0.05),
        "adamax_weight_decay": lambda p: torch.optim.Adamax(p, lr=0.05, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1),
        "adadelta": lambda p: torch.optim.Adadelta(p),
        "adadelta_weight_decay": lambda p: torch.optim.Adadelta(p, lr=0.5, rho=0.8, weight_decay=0.1),
        "rprop": lambda p: torch.optim.Rprop(p),
        "rprop_limits": lambda p: torch.optim.Rprop(p, lr=0.05, etas=(0.4, 1.5), step_sizes=(0.03, 0.1), maximize=True),
        "asgd": lambda p: torch.optim.ASGD(p),
        "asgd_averaged": lambda p: torch.optim.ASGD(p, lr=0.1, lambd=0.2, alpha=0.5, t0=1, weight_decay=0.1),
        "adafactor": lambda p: torch.optim.Adafactor(p),
        "adafactor_decay": lambda p: torch.optim.Adafactor(p, lr=0.1, beta2_decay=-0.6, eps=(1e-4, 0.5), d=1.5, weight_decay=0.1),
    }
    for name, make in optimizers.items():
        # NAdam keeps a product in the default dtype, and ASGD its rate.
        torch.set_default_dtype(torch.float64 if name.startswith(("nadam", "asgd")) else torch.float32)
        start, grads = uniform(f"{name}|start", (7,)), uniform(f"{name}|grads", (5, 7))
        p = torch.nn.Parameter(torch.from_numpy(start).double())
        optimizer, steps = make([p]), []
        for grad in grads:
            p.grad = torch.from_numpy(grad).double()
            optimizer.step()
            steps.append(p.detach().clone())
        g.put(name, "start", start)
        g.put(name, "grads", grads)
        g.put(name, "after", torch.stack(steps))
        if name.startswith("asgd"):
            g.put(name, "average", optimizer.state[p]["ax"])

    torch.set_default_dtype(torch.float32)
    whole = {
        "adafactor_matrix": ((4, 6), lambda p: torch.optim.Adafactor(p, lr=0.1)),
        "adafactor_volume": ((2, 3, 5), lambda p: torch.optim.Adafactor(p, lr=0.5, weight_decay=0.1, maximize=True)),
        "muon_wide": ((6, 10), lambda p: torch.optim.Muon(p, lr=0.02)),
        "muon_tall": ((12, 5), lambda p: torch.optim.Muon(p, lr=0.02, weight_decay=0.3, momentum=0.8, nesterov=False)),
        "muon_rms": ((8, 8), lambda p: torch.optim.Muon(p, lr=0.05, ns_steps=3, adjust_lr_fn="match_rms_adamw")),
        "muon_spectral": ((4, 9), lambda p: torch.optim.Muon(p, lr=0.05, ns_coefficients=(2.0, -1.5, 0.5), adjust_lr_fn="spectral_unclamped")),
    }
    for name, (shape, make) in whole.items():
        start, grads = uniform(f"{name}|start", shape), uniform(f"{name}|grads", (5, *shape))
        p = torch.nn.Parameter(torch.from_numpy(start).double())
        optimizer, steps = make([p]), []
        for grad in grads:
            p.grad = torch.from_numpy(grad).double()
            optimizer.step()
            steps.append(p.detach().clone())
        g.put(name, "start", start)
        g.put(name, "grads", grads)
        g.put(name, "after", torch.stack(steps))
    lr = torch.optim.lr_scheduler
    schedules = {
        "step_lr": lambda o: lr.StepLR(o, 4, 0.5),
        "multi_step_lr": lambda o: lr.MultiStepLR(o, [3, 8, 15], 0.3),
        "exponential_lr": lambda o: lr.ExponentialLR(o, 0.9),
        "cosine_annealing": lambda o: lr.CosineAnnealingLR(o, 15),
        "cosine_annealing_min": lambda o: lr.CosineAnnealingLR(o, 20, eta_min=0.01),
        "warm_restarts": lambda o: lr.CosineAnnealingWarmRestarts(o, 5, eta_min=0.01),
        "warm_restarts_longer": lambda o: lr.CosineAnnealingWarmRestarts(o, 3, T_mult=2),
        "polynomial_lr": lambda o: lr.PolynomialLR(o, 15, 2.5),
        "cyclic_lr": lambda o: lr.CyclicLR(o, 0.1, 0.5, 3, 5, cycle_momentum=False),
        "cyclic_lr_halved": lambda o: lr.CyclicLR(o, 0.1, 0.5, 4, mode="triangular2", cycle_momentum=False),
        "cyclic_lr_exp_range": lambda o: lr.CyclicLR(o, 0.1, 0.5, 4, mode="exp_range", gamma=0.9, cycle_momentum=False),
        "sequential_lr": lambda o: lr.SequentialLR(o, [lr.ExponentialLR(o, 0.5), lr.StepLR(o, 4, 0.5), lr.CosineAnnealingLR(o, 6)], [4, 13]),
        "one_cycle": lambda o: lr.OneCycleLR(o, 1.0, total_steps=20),
        "one_cycle_linear": lambda o: lr.OneCycleLR(o, 0.5, total_steps=20, pct_start=0.25, anneal_strategy="linear", div_factor=10, final_div_factor=100),
        "warm_up": lambda o: lr.LinearLR(o, start_factor=0.1, total_iters=8),
    }
    for name, make in schedules.items():
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)
        schedule, rates = make(optimizer), []
        for _ in range(20):
            rates.append(optimizer.param_groups[0]["lr"])
            if len(rates) < 20:
                optimizer.step()
                schedule.step()
        g.put(name, "lr", np.array(rates))
    return g


def clip():
    """clip_grad_norm_: gradients before, total norm, gradients after."""
    g = Golden()
    for name, limit in (("clip", 0.5), ("clip_not_needed", 50.0)):
        params = [torch.nn.Parameter(torch.zeros(shape, dtype=torch.float64)) for shape in ((3, 4), (5,))]
        for i, p in enumerate(params):
            p.grad = torch.from_numpy(uniform(f"{name}|{i}", p.shape)).double()
            g.put(name, f"grad.{i}", p.grad.clone())
        g.put(name, "norm", torch.nn.utils.clip_grad_norm_(params, limit))
        for i, p in enumerate(params):
            g.put(name, f"after.{i}", p.grad)
    return g


def main():
    arguments = sys.argv[1:]
    switch = arguments.pop(0) if arguments and arguments[0].startswith("--") else ""
    if switch not in ("", "--samples", "--all") or len(arguments) > 1 or (switch == "--all" and not arguments):
        sys.exit(__doc__)
    golden = pathlib.Path(__file__).parent.parent / "tests/golden"
    folder = pathlib.Path(arguments[0]) if arguments else golden / "samples" if switch else golden
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    if switch:
        return record_samples(folder, everything=switch == "--all")
    for name, family in FAMILIES.items():
        family().write(folder / f"{name}.safetensors")
    checkpoint, results = model()
    checkpoint.write(folder / "model_weights.safetensors")
    results.write(folder / "model.safetensors")
    both = optim()
    both.tensors.update(clip().tensors)
    both.write(folder / "optim.safetensors")
    models().write(folder / "programs.safetensors")
    ported().write(folder / "ported.safetensors")
    libtorch_programs().write(folder / "libtorch.safetensors")


if __name__ == "__main__":
    main()
