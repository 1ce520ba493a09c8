#!/usr/bin/env python3
"""All-reduce between processes of this machine, by size: every backend, Gloo's and MPI's own algorithms beside them.

All contestants take turns in every round of one run (see bench/all_reduce.cpp). With mpirun, MPI takes part.

    bench/run_all_reduce.py --build build --processes 2 4 --rounds 40 --json out.json --markdown out.md
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path


def run(program, processes, rounds):
    command = [str(program), str(processes), str(rounds)]
    environment = dict(os.environ)
    linked = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
    if shutil.which("mpirun") and "libmpi" in linked:
        command = ["mpirun", "-n", str(processes), str(program), str(rounds)]
        environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                           OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_hwloc_base_binding_policy="none")
        if processes > os.cpu_count():
            environment["OMPI_MCA_mpi_yield_when_idle"] = "1"
    output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if output.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with status {output.returncode}")
    return [json.loads(line) for line in output.stdout.splitlines() if line.startswith("{")]


def size_name(size):
    if size % (1 << 20) == 0:
        return f"{size >> 20} MiB"
    return f"{size >> 10} KiB" if size % (1 << 10) == 0 else f"{size / 1e6:g} MB"


def table(rows, processes):
    sizes = sorted({row["bytes"] for row in rows})
    names = list(dict.fromkeys(row["contestant"] for row in rows))
    by_key = {(row["contestant"], row["bytes"]): row for row in rows}
    lines = [f"### {processes} processes", "",
             "Median / fastest time in us, and algorithm bandwidth in GB/s (bytes / median).", "",
             "| | " + " | ".join(size_name(size) for size in sizes) + " |",
             "|---|" + "---|" * len(sizes)]
    for name in names:
        cells = [by_key[name, size] for size in sizes]
        lines.append(f"| {name} | " + " | ".join(
            f"{c['median_us']:.0f} / {c['best_us']:.0f} ({c['gb_per_s']:.2f})" for c in cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=Path("build"))
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    report = {"cores": os.cpu_count(), "rows": []}
    text = f"## All-reduce, float32 sum, {os.cpu_count()} cores\n"
    for processes in arguments.processes:
        before = os.getloadavg()[0]
        rows = run(arguments.build / "bench" / "bench_all_reduce", processes, arguments.rounds)
        report["rows"] += [dict(row, load_before=before) for row in rows]
        text += "\n" + table(rows, processes)
    print(text, end="")
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    if arguments.markdown:
        arguments.markdown.write_text(text)


if __name__ == "__main__":
    main()
