#!/usr/bin/env python3
"""Training throughput of lockstep beside libtorch, in one run.

For each model, batch size and thread count both programs are started, and take turns: in every round each trains for
the same time, one after the other, in alternating order. A row gives the median of the rounds, the median of the rounds'
ratios with its range, and the same for processor time, which other work on the machine disturbs less.

The peer is tuned: glibc keeps its memory instead of returning it to the system each step, the OpenMP build of OpenBLAS
replaces the pthread build (two thread pools fight over the cores), and the number of threads is set explicitly. With
--untuned the peer runs a second time as it is shipped, with only its number of threads set. Where the build was given a
current PyTorch (LOCKSTEP_BENCH_PYTORCH), its C++ library is another peer, tuned the same way but for the BLAS, which it
brings itself. With --python, a Python with PyTorch, bench/torch_train_throughput.py takes part too: eager and compiled,
and for convolutional nets channels-last; it alone has the models beyond lenet, cnn and mlp.

The share of the peak is the rate of the net's multiply-adds, counted as dense sums though lockstep skips products with
zero, over what a core does in registers (bench/peak_flops), by processor time. Memory is the peak of the process, less the
images.

    bench/run_train_throughput.py --build build --rounds 7 --json out.json --markdown out.md
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

OPENMP_BLAS = Path("/usr/lib/x86_64-linux-gnu/openblas-openmp")


class Program:
    """One benchmark process, which trains when told to."""

    def __init__(self, name, command, model, batch, threads, environment, options=()):
        self.name = name
        self.process = subprocess.Popen(
            [*map(str, command), model, str(batch), str(threads), *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self.library = self.read()["library"]

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} ended with status {self.process.wait()}")
        return json.loads(line)

    def run(self, steps):
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return self.read()

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)


def start_programs(arguments, model, batch, threads):
    """lockstep, and every peer that there is for the model."""
    build = arguments.build / "bench"
    bf16 = arguments.amp == "bf16"
    programs = [Program("lockstep", [build / "train_throughput"], model, batch, threads, own_environment(threads),
                        ["bf16"] if bf16 else [])]
    if arguments.no_peer:
        return programs
    if arguments.python and model in PYTHON_MODELS:
        command = [arguments.python, Path(__file__).parent / "torch_train_throughput.py"]
        variants = {"eager": [], "compiled": ["--compile"]}
        if model in CONVOLUTIONAL:
            variants["channels-last"] = ["--channels-last"]
        for name in arguments.variants.split(","):
            if name in variants:
                programs.append(Program(name, command, model, batch, threads, own_environment(threads),
                                        variants[name] + (["--bf16"] if bf16 else [])))
    if model not in C_MODELS or bf16:
        return programs
    peer = build / "peer_libtorch"
    if peer.exists():
        programs.append(Program("libtorch", [peer], model, batch, threads, peer_environment(threads)))
        if arguments.untuned:
            programs.append(Program("as shipped", [peer], model, batch, threads, own_environment(threads)))
    current = build / "peer_pytorch"
    if current.exists():
        environment = peer_environment(threads)
        # It brings its own BLAS.
        for name in ("LD_PRELOAD", "LD_LIBRARY_PATH"):
            environment.pop(name, None)
        programs.append(Program("PyTorch", [current], model, batch, threads, environment))
    return programs


def own_environment(threads):
    return dict(os.environ, OMP_NUM_THREADS=str(threads))


def peer_environment(threads):
    environment = own_environment(threads)
    environment["GLIBC_TUNABLES"] = (
        "glibc.malloc.mmap_threshold=2000000000:glibc.malloc.trim_threshold=4000000000")
    if OPENMP_BLAS.is_dir():
        environment["LD_LIBRARY_PATH"] = str(OPENMP_BLAS)
        environment["LD_PRELOAD"] = str(OPENMP_BLAS / "libblas.so.3")
    return environment


# Multiply-adds per image of forward, weight gradients and data gradients (none of the first layer's input), times two.
FLOPS = {"lenet": 2 * (3 * (144000 + 320000 + 16000 + 500) - 144000),
         "cnn": 2 * (3 * (194688 + 10616832 + 1179648 + 1280) - 194688),
         "mlp": 2 * (3 * (401408 + 262144 + 5120) - 401408)}
FLOPS["cnn_plain"] = FLOPS["cnn"]
IMAGES_MIB = 60000 * 28 * 28 * 4 / 2**20
C_MODELS = ("lenet", "cnn", "cnn_plain", "mlp")
CONVOLUTIONAL = ("lenet", "lenet-bn", "cnn", "resnet18", "mobilenet")
PYTHON_MODELS = ("lenet-bn", "gpt", "gpt_1024", "vit", "mixer", "mlp_gelu", "lstm", "lstm_layer", "resnet18", "mobilenet",
                 "lenet", "cnn", "mlp")
PEERS = ("libtorch", "as shipped", "PyTorch", "eager", "compiled", "channels-last")


def measure(arguments, peak, model, batch, threads):
    """Medians and ratios of one row."""
    programs = start_programs(arguments, model, batch, threads)
    steps = {}
    for program in programs:
        few = 10 if model in ("lenet", "lenet-bn", "mlp") else 2
        program.run(3)
        program.run(few)
        warm = program.run(few)
        steps[program.name] = max(1, round(arguments.seconds * warm["steps"] / max(warm["cpu_seconds"] / threads, 1e-3)))
    rounds = {program.name: [] for program in programs}
    for index in range(arguments.rounds):
        for program in programs if index % 2 == 0 else reversed(programs):
            rounds[program.name].append(program.run(steps[program.name]))
    for program in programs:
        program.close()

    def per_second(result, clock):
        return result["steps"] * batch / max(result[clock], 1e-9)

    row = {"model": model, "batch": batch, "threads": threads, "rounds": arguments.rounds}
    for program in programs:
        results = rounds[program.name]
        row[program.name] = {
            "library": program.library,
            "images_per_s": statistics.median(per_second(r, "seconds") for r in results),
            "images_per_cpu_s": statistics.median(per_second(r, "cpu_seconds") for r in results),
            "ms_per_step": 1e3 * statistics.median(r["seconds"] / r["steps"] for r in results),
            "peak_mib": results[-1]["peak_mib"] - (0 if model.startswith("gpt") else IMAGES_MIB),
            "last_loss": results[-1]["loss"]}
        if peak and model in FLOPS:
            row[program.name]["of_peak"] = row[program.name]["images_per_cpu_s"] * FLOPS[model] / (peak * 1e9)
        if program.name == "lockstep":
            continue
        for key, clock in (("ratio", "seconds"), ("cpu_ratio", "cpu_seconds")):
            ratios = [per_second(a, clock) / per_second(b, clock)
                      for a, b in zip(rounds["lockstep"], results)]
            row[program.name][key] = {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}
    return row


def markdown(rows):
    peers = [name for name in PEERS if any(name in row for row in rows)]
    title = {name: next(row[name]["library"] for row in rows if name in row) for name in peers}
    title = {name: f"{library}, as shipped" if name == "as shipped" else library for name, library in title.items()}
    head = ["model", "batch", "threads", "lockstep img/s", "of peak", "MiB"]
    for name in peers:
        head += [f"{title[name]}, img/s", "MiB", "ratio (range)", "processor-time ratio"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        own = row["lockstep"]
        cells = [row["model"], row["batch"], row["threads"], f"{own['images_per_s']:.0f}",
                 f"{100 * own['of_peak']:.0f} %" if "of_peak" in own else "-", f"{own['peak_mib']:.0f}"]
        for name in peers:
            if name not in row:
                cells += ["-"] * 4
                continue
            peer = row[name]
            ratio, by_processor = peer["ratio"], peer["cpu_ratio"]
            cells += [f"{peer['images_per_s']:.0f}", f"{peer['peak_mib']:.0f}",
                      f"{ratio['median']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})",
                      f"{by_processor['median']:.2f} ({by_processor['low']:.2f}-{by_processor['high']:.2f})"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=Path("build"), help="build folder, made with LOCKSTEP_BUILD_BENCH=ON")
    parser.add_argument("--models", default="lenet,cnn,mlp", help="of lenet, cnn, cnn_plain (no dropout), mlp, " + ", ".join(PYTHON_MODELS))
    parser.add_argument("--batches", default="64,256")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of processor time a thread, of each program in each round")
    parser.add_argument("--untuned", action="store_true", help="a second peer: libtorch as shipped")
    parser.add_argument("--python", help="a Python with PyTorch: bench/torch_train_throughput.py takes part")
    parser.add_argument("--variants", default="eager,compiled,channels-last", help="of PyTorch in Python")
    parser.add_argument("--amp", choices=["off", "bf16"], default="off", help="mixed precision, of lockstep and of PyTorch in Python")
    parser.add_argument("--no-peer", action="store_true", help="measure lockstep alone")
    parser.add_argument("--json", type=Path, help="write all rows to this file")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    arguments = parser.parse_args()
    rows = []
    program = arguments.build / "bench/peak_flops"
    peak = json.loads(subprocess.check_output([program]))["gflops"] if program.exists() else None
    print(f"float32 peak of a core: {peak} GFLOP/s" if peak else "float32 peak: not measured")
    for model in arguments.models.split(","):
        for batch in map(int, arguments.batches.split(",")):
            for threads in map(int, arguments.threads.split(",")):
                rows.append(measure(arguments, peak, model, batch, threads))
                print(markdown(rows[-1:]).splitlines()[-1], flush=True)
    print("\n" + markdown(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    if arguments.markdown:
        arguments.markdown.write_text(markdown(rows) + "\n")


if __name__ == "__main__":
    main()
