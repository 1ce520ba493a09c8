#!/usr/bin/env python3
"""Two builds against each other, in turns: all-reduces of every backend, and data-parallel training.

Every round runs both, in an order that alternates; of each figure the best of all rounds counts, which is what a machine
that does other work too disturbs least, and beside it the processor time of all processes.

    bench/compare_builds.py OLD_BUILD NEW_BUILD --rounds 20 --processes 2
"""

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path

from run_all_reduce import run as run_all_reduce


def processor_seconds(action):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = action()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return result, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def all_reduce(build, arguments):
    rows, seconds = processor_seconds(
        lambda: run_all_reduce(build / "bench" / "bench_all_reduce", arguments.processes, arguments.inner_rounds))
    figures = {f"all_reduce {row['contestant']}, {row['bytes']} bytes, us": row["best_us"] for row in rows}
    return {**figures, "all_reduce, processor s": seconds}


def scaling(build, arguments):
    def run():
        command = [build / "bin" / "lockstep-run", "--nproc-per-node", str(arguments.processes), "--",
                   build / "bench" / "ddp_scaling", arguments.model, "64", str(arguments.steps)]
        output = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=True).stdout
        return json.loads(output[output.index("{"):output.rindex("}") + 1])

    figures, seconds = processor_seconds(run)
    together = figures["together"] if isinstance(figures.get("together"), (int, float)) else None
    rows = {f"ddp_scaling {arguments.model}, processor s": seconds}
    if together:
        rows[f"ddp_scaling {arguments.model}, us an image"] = 1e6 / together
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--inner-rounds", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--only", choices=["all_reduce", "ddp_scaling"])
    parser.add_argument("--bound", type=float, default=3.0, help="percent; more is a failure (exit status 1)")
    arguments = parser.parse_args()
    parts = [part for name, part in (("all_reduce", all_reduce), ("ddp_scaling", scaling))
             if arguments.only in (None, name)]
    best = ({}, {})
    for number in range(arguments.rounds):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            for part in parts:
                for name, value in part((arguments.old, arguments.new)[which], arguments).items():
                    best[which][name] = min(value, best[which].get(name, value))
    slower = 0
    print("| | old | new | new / old |\n|---|---|---|---|")
    for name, old in best[0].items():
        if name not in best[1]:
            continue
        new = best[1][name]
        slower += new > old * (1 + arguments.bound / 100)
        print(f"| {name} | {old:.6g} | {new:.6g} | {new / old:.3f} |")
    sys.exit(1 if slower else 0)


if __name__ == "__main__":
    main()
