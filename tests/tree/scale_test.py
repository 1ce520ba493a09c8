#!/usr/bin/env python3
"""bench/scale.py: what it predicts beside what is published or follows from arithmetic, and that docs/scale.md says so."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from scale import MACHINES, MODELS, Plan, best_plan, here, predict, published  # noqa: E402

failures = []


def check(holds, what):
    if not holds:
        failures.append(what)


rows = published()
for billions, gpus, mesh, measured, predicted in rows:
    check(abs(predicted / measured - 1) < 0.10,
          f"{billions} billion parameters on {gpus} GPUs: {predicted:.0f} TFLOP/s predicted, {measured} published")
table = re.findall(r"^\| ([\d.]+) \| (\d+) \| [\dx ]+ \| (\d+) \| (\d+) \|", (ROOT / "docs/scale.md").read_text(), re.M)
check(table == [(f"{b:g}", str(g), str(m), f"{p:.0f}") for b, g, _, m, p in rows],
      "docs/scale.md holds another table than bench/scale.py --check prints")

# The names of the models are the numbers of their parameters.
for name, model in MODELS.items():
    check(abs(model.parameters / 1e9 / float(name) - 1) < 0.03, f"{name}: {model.parameters * 1e-9:.1f} billion parameters")

a100, model = MACHINES["a100"], MODELS["18.4"]
whole = predict(model, a100, Plan(), 64)
check(0.99 < whole.share * a100.peak * whole.step / model.operations(64) < 1.01, "one GPU: operations and time disagree")
for pipeline, sequences in ((2, 8), (4, 8), (8, 64)):
    plan = Plan(pipeline=pipeline)
    expected = (pipeline - 1) / (sequences + pipeline - 1)
    found = predict(model, a100, plan, sequences)
    check(abs(found.bubble - expected) < 1e-9, f"bubble of {pipeline} stages: {found.bubble}, expected {expected}")
held = [predict(model, a100, Plan(data=64, zero=zero), 64).memory for zero in range(4)]
check(held == sorted(held, reverse=True) and held[3] < 0.2 * held[0], f"ZeRO does not save memory: {held}")
for plan in (Plan(pipeline=7), Plan(tensor=5), Plan(data=3), Plan(pipeline=4, chunks=2)):
    try:
        predict(model, a100, plan, 8 * 3 + 1 if plan.data == 3 else 6)
        check(False, f"{plan} was taken")
    except ValueError:
        pass
check(best_plan(MODELS["145.6"], a100, 8, 64) is None, "145 billion parameters fit on 8 GPUs")
check(best_plan(MODELS["1.7"], a100, 8, 64)[0].data == 8, "a small model should divide its data alone")

# Two processes, by arithmetic: half of one's time, and beside it an all-reduce; a bubble; sums of activations.
measured = {"layers": 2, "hidden": 64, "heads": 2, "vocabulary": 64, "context": 32, "micro_batch": 1, "micro_batches": 4,
            "alone": 1.0, "large": 1.0 + 2e-3, "small": 2e-3, "large_bytes": 4_000_000, "data": 1.0, "pipeline": 1.0, "tensor": 1.0}
steps = {name: predicted for name, _, predicted in here(measured)}
parameters = 2 * (12 * 64**2 + 13 * 64) + (64 + 32) * 64
check(abs(steps["data"] - (0.5 + 4 * parameters / 4e6 + 2e-3)) < 1e-6, f"two processes: {steps['data']} s")
check(abs(steps["tensor"] - (0.5 + 4 * 2 * 4 * (4 * 32 * 64 / 4e6 + 2e-3))) < 1e-6,
      f"divided layers: {steps['tensor']} s")
check(0.5 * 5 / 4 < steps["pipeline"] < 0.5 * 5 / 4 + 0.2, f"two stages: {steps['pipeline']} s")

if failures:
    sys.exit("\n".join(failures))
