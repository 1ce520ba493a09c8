"""What the benchmarks in PyTorch share: rounds of steps, asked for and answered as bench/train_rounds.h says."""

import json
import resource
import sys
import time

import torch


def run(step, kind):
    """`step` runs once and returns a number; `kind` stands behind PyTorch's version: "eager"."""
    print(json.dumps({"library": f"PyTorch {torch.__version__}, {kind}"}), flush=True)
    for line in sys.stdin:
        steps, value, cpu, start = int(line), 0.0, time.process_time(), time.monotonic()
        for _ in range(steps):
            value = step()
        print(json.dumps({"steps": steps, "seconds": time.monotonic() - start, "cpu_seconds": time.process_time() - cpu,
                          "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "loss": value}), flush=True)
