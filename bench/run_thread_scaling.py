#!/usr/bin/env python3
"""What two threads make of a training step, lockstep alone: steps a second with two threads over one's, and, as the
limit of the machine, of two processes of one thread at the same time. Wall-clock time, rounds in turns, on cores that
nothing else uses. Each row names how far apart the two cores are (bench/line_round_trip), measured before and after:
a virtual machine's cores may be moved meanwhile, and small steps feel it.

  bench/run_thread_scaling.py --build build/release lenet:64 mlp:256 vit:16
"""

import argparse
import json
import os
import statistics
import subprocess
from pathlib import Path


class Steps:
    """A train_throughput process that does as many steps as it is told."""

    def __init__(self, build, model, batch, threads):
        environment = dict(os.environ, LOCKSTEP_NUM_THREADS=str(threads), OPENBLAS_NUM_THREADS="1")
        self.process = subprocess.Popen([build / "bench/train_throughput", model, batch, str(threads)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self.process.stdout.readline()

    def start(self, steps):
        self.steps = steps
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()

    def end(self):
        """Seconds a step."""
        return json.loads(self.process.stdout.readline())["seconds"] / self.steps

    def run(self, steps):
        self.start(steps)
        return self.end()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def round_trip(build):
    lines = subprocess.check_output([build / "bench/line_round_trip"], text=True).splitlines()
    if not lines:
        raise SystemExit("this process may use one core only; two threads want two")
    return json.loads(lines[0])["round_trip_ns"]


def ratio(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def measure(build, model, batch, rounds, seconds):
    one, another, two = (Steps(build, model, batch, threads) for threads in (1, 1, 2))
    for process in (one, another, two):
        process.run(3)
    steps = max(3, int(seconds / two.run(5)))
    before, threads, processes, times = round_trip(build), [], [], []
    for _ in range(rounds):
        alone, both = one.run(steps), two.run(steps)
        one.start(steps)
        another.start(steps)
        processes.append(alone / one.end() + alone / another.end())
        threads.append(alone / both)
        times.append((alone, both))
    for process in (one, another, two):
        process.close()
    ms = [1e3 * statistics.median(column) for column in zip(*times)]
    print(f"| {model}, {batch} | {ratio(threads)} | {ratio(processes)} | {ms[0]:.2f} | {ms[1]:.2f} "
          f"| {before:.0f}, {round_trip(build):.0f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of one measurement")
    parser.add_argument("rows", nargs="+", help="model:batch")
    arguments = parser.parse_args()
    print("| model, batch | two threads over one | two processes over one | ms, one | ms, two | round trip of a line, ns |")
    print("|---|---|---|---|---|---|")
    for row in arguments.rows:
        model, batch = row.split(":")
        measure(arguments.build.resolve(), model, batch, arguments.rounds, arguments.seconds)


if __name__ == "__main__":
    main()
