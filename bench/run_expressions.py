#!/usr/bin/env python3
"""Expressions of elementwise operations in natural code (bench/expressions.cpp): lockstep, the same with
LOCKSTEP_FUSION=0, and PyTorch eager and compiled, in turns, forward and backward. Wall-clock time; ratios are medians
over the rounds of another's time over lockstep's, with their ranges.

  bench/run_expressions.py --build build/release --python venv/bin/python
"""

import argparse
import json
import os
import statistics
import subprocess
from pathlib import Path

EXPRESSIONS = ("gelu", "gelu_forward", "swiglu", "rms_norm", "layer_norm", "batch_norm_relu", "rope", "softmax",
               "masked_softmax", "focal_loss", "variational", "huber", "charbonnier")

class Program:
    def __init__(self, command, environment=None):
        self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env=dict(os.environ, **(environment or {})))
        self.process.stdout.readline()

    def run(self, steps):
        """Seconds a step."""
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())["seconds"] / steps

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def programs_of(arguments, name, threads):
    own = [arguments.build / "bench/expressions", name, 1, threads]
    programs = {"lockstep": Program(own), "one by one": Program(own, {"LOCKSTEP_FUSION": "0"})}
    if arguments.python:
        torch = [arguments.python, Path(__file__).parent / "torch_expressions.py", name, 1, threads]
        programs["eager"] = Program(torch)
        programs["compiled"] = Program(torch + ["--compile"])
    return programs


def measure(arguments, name, threads):
    programs = programs_of(arguments, name, threads)
    steps, rounds = {}, {key: [] for key in programs}
    for key, program in programs.items():
        program.run(3)
        steps[key] = max(1, round(arguments.seconds / program.run(5)))
    for index in range(arguments.rounds):
        for key in programs if index % 2 == 0 else reversed(programs):
            rounds[key].append(programs[key].run(steps[key]))
    for program in programs.values():
        program.close()
    cells = [name, threads, f"{1e3 * statistics.median(rounds['lockstep']):.2f}"]
    for key in programs:
        if key == "lockstep":
            continue
        ratios = [other / own for other, own in zip(rounds[key], rounds["lockstep"])]
        cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})")
    return cells


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=Path("build"), help="build folder, made with LOCKSTEP_BUILD_BENCH=ON")
    parser.add_argument("--expressions", default=",".join(EXPRESSIONS))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each program in each round")
    parser.add_argument("--python", help="a Python with PyTorch")
    arguments = parser.parse_args()
    head = ["expression", "threads", "ms", "one by one / joined"] + (["eager", "compiled"] if arguments.python else [])
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|", flush=True)
    for name in arguments.expressions.split(","):
        for threads in map(int, arguments.threads.split(",")):
            print("| " + " | ".join(map(str, measure(arguments, name, threads))) + " |", flush=True)


if __name__ == "__main__":
    main()
