#!/usr/bin/env python3
"""Time from the start of mnist_train to the evaluation that shows a test accuracy, by seed.

Prints a row for each seed and their median. The clock runs from starting the process to reading the line, so it counts
loading the data and everything else. Processor time of the whole run is given beside it, for machines that do other work.
Arguments after -- go to mnist_train in place of the default.

    LOCKSTEP_DATA=/data/mnist bench/run_time_to_accuracy.py --build build --seeds 5
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

DEFAULT = ["--model", "lenet", "--epochs", "3", "--batch-size", "64", "--lr", "0.03", "--schedule", "one-cycle"]


def run(program, options, seed, target):
    """(seconds, accuracy) of the first evaluation that reaches the target, or None and the best; processor seconds."""
    before = os.times()
    start = time.monotonic()
    process = subprocess.Popen([str(program), *options, "--dataset", "mnist", "--seed", str(seed), "--no-progress"],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    reached, best = None, 0.0
    for line in process.stdout:
        found = re.match(r"epoch \d+: test accuracy ([0-9.]+)", line)
        if found:
            accuracy = float(found.group(1))
            best = max(best, accuracy)
            if reached is None and accuracy >= target:
                reached = time.monotonic() - start
    if process.wait() != 0:
        sys.exit(f"{program} ended with status {process.returncode}")
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return reached, best, cpu


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=Path("build"))
    parser.add_argument("--target", type=float, default=0.99)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("options", nargs="*", help="of mnist_train")
    arguments = parser.parse_args()
    options = arguments.options or DEFAULT
    print(f"mnist_train {' '.join(options)}, to {arguments.target}\n")
    print("| seed | seconds | best accuracy | processor seconds of the whole run |\n|---|---|---|---|")
    times = []
    for seed in range(1, arguments.seeds + 1):
        reached, best, cpu = run(arguments.build / "bin/mnist_train", options, seed, arguments.target)
        times.append(reached)
        print(f"| {seed} | {f'{reached:.2f}' if reached else 'not reached'} | {best:.4f} | {cpu:.2f} |", flush=True)
    if None not in times:
        print(f"\nmedian {statistics.median(times):.2f} s, slowest {max(times):.2f} s")
    return 0 if None not in times else 1


if __name__ == "__main__":
    sys.exit(main())
