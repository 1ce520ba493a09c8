"""Records PyTorch's values for softmax, the losses and the normalisations in losses_norms.h beside this file.

Run with any PyTorch >= 1.10:  python3 record_losses_norms.py
Inputs are waves, sin(0.7 * i + phase) in float64, which tests/support/recorded.h computes too. Each result is
followed by the gradients of sum(result * wave(phase 9)) with respect to the inputs.
"""
import itertools
import math
import os

import torch
import torch.nn.functional as F

records = []


def wave(shape, phase):
    count = math.prod(shape)
    return torch.tensor([math.sin(0.7 * i + phase) for i in range(count)], dtype=torch.float64).reshape(shape)


def leaf(shape, phase):
    return wave(shape, phase).requires_grad_()


def record(name, result, inputs=(), extra=()):
    (result * wave(tuple(result.shape), 9.0)).sum().backward()
    for suffix, tensor in [("", result)] + [(f".grad{i}", x.grad) for i, x in enumerate(inputs)] + \
            [(f".extra{i}", x) for i, x in enumerate(extra)]:
        records.append((name + suffix, tensor.detach().flatten().tolist()))


for dim in range(3):
    x = leaf((2, 3, 4), 1.0)
    record(f"softmax.{dim}", F.softmax(x * 3, dim), [x])
    x = leaf((2, 3, 4), 1.0)
    record(f"log_softmax.{dim}", F.log_softmax(x * 3, dim), [x])

targets = torch.tensor([1, 3, 2, 0, 2])
plane_targets = torch.tensor([[[0, 2], [1, 1]], [[2, 2], [0, 1]]])
for reduction, weighted, smoothing in itertools.product(["none", "mean", "sum"], [0, 1], [0.0, 0.1]):
    tag = f"{reduction}.{weighted}.{int(smoothing * 10)}"
    weight = wave((4,), 2.0) + 1.5 if weighted else None
    x = leaf((5, 4), 1.0)
    record(f"cross_entropy.{tag}",
           F.cross_entropy(x * 3, targets, weight, reduction=reduction, ignore_index=0, label_smoothing=smoothing), [x])
    x = leaf((2, 3, 2, 2), 1.0)
    weight = wave((3,), 2.0) + 1.5 if weighted else None
    record(f"cross_entropy.planes.{tag}",
           F.cross_entropy(x * 3, plane_targets, weight, reduction=reduction, ignore_index=1,
                           label_smoothing=smoothing), [x])
    if smoothing == 0.0:
        x = leaf((2, 3, 2, 2), 1.0)
        record(f"nll_loss.{reduction}.{weighted}",
               F.nll_loss(x, plane_targets, weight, reduction=reduction, ignore_index=1), [x])

for reduction in ["none", "mean", "sum"]:
    x, y = leaf((3, 4), 1.0), leaf((3, 4), 2.0)
    record(f"mse_loss.{reduction}", F.mse_loss(x, y, reduction=reduction), [x, y])
    for weighted in [0, 1]:
        x, y = leaf((3, 4), 1.0), wave((3, 4), 2.0) * 0.5 + 0.5
        weight = wave((3, 1), 3.0) + 1.5 if weighted else None
        pos_weight = wave((4,), 4.0) + 1.5 if weighted else None
        record(f"bce_with_logits.{reduction}.{weighted}",
               F.binary_cross_entropy_with_logits(x * 5, y, weight, reduction=reduction, pos_weight=pos_weight), [x])

for shape, training in itertools.product([(4, 3), (2, 3, 2, 2), (5, 3, 7)], [0, 1]):
    tag = f"{len(shape)}.{training}"
    x, weight, bias = leaf(shape, 1.0), leaf((3,), 2.0), leaf((3,), 3.0)
    mean, var = wave((3,), 4.0), wave((3,), 5.0) + 1.5
    record(f"batch_norm.{tag}", F.batch_norm(x, mean, var, weight, bias, bool(training), 0.3, 1e-3), [x, weight, bias],
           [mean, var])

for normalized in [(4,), (3, 4)]:
    x, weight, bias = leaf((2, 3, 4), 1.0), leaf(normalized, 2.0), leaf(normalized, 3.0)
    record(f"layer_norm.{len(normalized)}", F.layer_norm(x, normalized, weight, bias, 1e-3), [x, weight, bias])

here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "losses_norms.h"), "w") as out:
    out.write("#pragma once\n\n")
    out.write(f"// Written by record_losses_norms.py with PyTorch {torch.__version__}. Do not edit.\n\n")
    out.write("#include <map>\n#include <string>\n#include <vector>\n\n// clang-format off\n")
    out.write("namespace lockstep::testing {\n\n")
    out.write("inline const std::map<std::string, std::vector<double>>& losses_norms() {\n")
    out.write("  static const std::map<std::string, std::vector<double>> records = {\n")
    for name, values in records:
        out.write(f'    {{"{name}", {{{", ".join(repr(v) for v in values)}}}}},\n')
    out.write("  };\n  return records;\n}\n\n}  // namespace lockstep::testing\n")
