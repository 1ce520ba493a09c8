#!/usr/bin/env python3
"""Training throughput of lockstep and PyTorch on one GPU, in one run.

Each row is a net, a batch size and a type; its contestants are lockstep with and without CUDA graphs and PyTorch eager,
compiled and with CUDA graphs. All are set up, and then take turns: in each round every one trains the same number of
steps that takes it about --seconds, in an order that turns round. Figures are medians over the rounds; a ratio is the
median of the rounds' ratios, with its range. The data set lies on the GPU for all.

    bench/run_cuda_throughput.py --program build/cuda/bench/cuda_throughput --json out.json --markdown out.md

Rows are run in the order given, and --limit ends the run after so many seconds, with the rows that were done.
"""

import argparse
import json
import queue
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

ROWS = ["lenet:64:float32", "cnn:256:bf16", "mlp:64:float32", "cnn:256:float32", "lenet:256:float32", "cnn:64:float32",
        "cnn:64:bf16", "mlp:256:float32", "lenet:64:bf16", "lenet:256:bf16", "mlp:64:bf16", "mlp:256:bf16", "resnet18:128:float32",
        "resnet18:128:bf16", "gpt:32:tf32", "gpt:32:bf16", "gpt_1024:16:bf16"]
CONVOLUTIONAL = ("lenet", "lenet-bn", "cnn", "resnet18", "mobilenet")
OWN = {"lockstep": {"graph": True}, "lockstep, no graph": {"graph": False},
       "lockstep, cuDNN measured": {"graph": True, "benchmark": True}}
PEERS = {"PyTorch eager": "eager", "PyTorch compile": "compile", "PyTorch graphs": "graphs",
         "PyTorch graphs, channels_last": "graphs-channels-last", "PyTorch compile, max-autotune": "compile-max-autotune"}


class Program:
    """A process that answers a line of JSON with another."""

    def __init__(self, command, end):
        self.end = end
        self.lines = queue.Queue()
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self.read, daemon=True).start()
        self.about = self.answer(120)

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def answer(self, limit):
        try:
            line = self.lines.get(timeout=max(0.1, min(limit, self.end - time.monotonic())))
        except queue.Empty:
            self.process.kill()
            raise RuntimeError("took too long") from None
        if line is None:
            raise RuntimeError(f"ended with status {self.process.wait()}")
        return json.loads(line)

    def ask(self, request, limit=300):
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except OSError as error:
            raise RuntimeError(f"ended with status {self.process.wait()}") from error
        found = self.answer(limit)
        if "error" in found:
            raise RuntimeError(found["error"])
        return found

    def close(self):
        try:
            self.process.stdin.close()
            self.process.wait(timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()


def contestants_of(model, dtype, arguments):
    """Name: (program, what its setup says beside the row)."""
    found = {name: ("lockstep", setup) for name, setup in OWN.items()
             if "benchmark" not in setup or model in CONVOLUTIONAL}
    for name, variant in PEERS.items():
        if variant == "graphs-channels-last" and model not in CONVOLUTIONAL:
            continue
        if variant == "compile-max-autotune" and not arguments.max_autotune:
            continue
        if variant in arguments.variants.split(","):
            found[name] = ("PyTorch", {"variant": variant})
    return found


def measure(programs, row, arguments):
    model, batch, dtype = row.split(":")
    result = {"model": model, "batch": int(batch), "dtype": dtype, "contestants": {}, "failed": {}}
    steps, about = {}, contestants_of(model, dtype, arguments)
    # Colour images and windows of tokens are larger.
    images = arguments.images if model in ("lenet", "lenet-bn", "cnn", "mlp") else arguments.images // 8
    for name, (program, setup) in list(about.items()):
        if program not in programs:
            result["failed"][name] = f"{program} is not here"
            continue
        try:
            made = programs[program].ask({"setup": name, "model": model, "batch": int(batch), "dtype": dtype,
                                          "images": images, "warmup": arguments.warmup, **setup})
            warm = programs[program].ask({"run": name, "steps": arguments.warmup})
            steps[name] = max(1, round(arguments.seconds * warm["steps"] / max(warm["seconds"], 1e-9)))
            result["contestants"][name] = made
        except RuntimeError as error:
            result["failed"][name] = str(error)[:500]
    names = list(steps)
    rounds = {name: [] for name in names}
    for index in range(arguments.rounds):
        turn = names[index % max(1, len(names)):] + names[:index % max(1, len(names))]
        for name in turn:
            if name in result["failed"]:
                continue
            try:
                found = programs[about[name][0]].ask({"run": name, "steps": steps[name]})
                if found["loss"] != found["loss"] or abs(found["loss"]) > 1e4:
                    raise RuntimeError(f"the loss is {found['loss']}")
                rounds[name].append(found["steps"] * int(batch) / found["seconds"])
            except RuntimeError as error:
                result["failed"][name] = str(error)[:500]
    for name in names:
        try:
            programs[about[name][0]].ask({"drop": name})
        except RuntimeError:
            pass
        if name in result["failed"]:
            del result["contestants"][name]
            continue
        rates = rounds[name]
        result["contestants"][name].update(images_per_s=statistics.median(rates), low=min(rates), high=max(rates),
                                           us_per_step=1e6 * int(batch) / statistics.median(rates))
    own = rounds.get("lockstep", [])
    result["ratios"] = {}
    for name in result["contestants"]:
        if name.startswith("PyTorch") and "lockstep" in result["contestants"]:
            ratios = [a / b for a, b in zip(own, rounds[name])]
            result["ratios"][name] = {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}
    return result


def markdown(rows):
    peers = [name for name in PEERS if any(name in row["contestants"] for row in rows)]
    head = ["model", "batch", "type", "lockstep, images/s", "us/step", "no graph", "MiB"]
    for name in peers:
        head += [f"{name}, images/s", "MiB", "ratio (range)"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]

    def cell(found, key, form="{:,.0f}"):
        return form.format(found[key]) if found and key in found else "-"

    for row in rows:
        made = row["contestants"]
        own = made.get("lockstep")
        cells = [row["model"], row["batch"], row["dtype"], cell(own, "images_per_s"), cell(own, "us_per_step", "{:.1f}"),
                 cell(made.get("lockstep, no graph"), "images_per_s"), cell(own, "peak_mib")]
        for name in peers:
            ratio = row["ratios"].get(name)
            cells += [cell(made.get(name), "images_per_s"), cell(made.get(name), "peak_mib"),
                      f"{ratio['median']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})" if ratio else "-"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    for row in rows:
        for name, why in row["failed"].items():
            lines.append(f"\n{row['model']}, {row['batch']}, {row['dtype']}: {name}: {why.splitlines()[0][:200]}")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, default=Path("build/cuda/bench/cuda_throughput"))
    parser.add_argument("--python", default=sys.executable, help="one that has PyTorch")
    parser.add_argument("--rows", default=",".join(ROWS), help="model:batch:type,...")
    parser.add_argument("--variants", default="eager,compile,graphs,graphs-channels-last,compile-max-autotune")
    parser.add_argument("--max-autotune", action="store_true", help="also torch.compile's slowest search")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.4, help="of each contestant in each round")
    parser.add_argument("--warmup", type=int, default=30, help="steps")
    parser.add_argument("--images", type=int, default=60000, help="in the data set")
    parser.add_argument("--no-peer", action="store_true", help="measure lockstep alone")
    parser.add_argument("--peer-on-cpu", action="store_true", help="PyTorch on the CPU: for trying this program out")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds for all")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.limit
    programs, missing = {}, {}
    commands = {"lockstep": [str(arguments.program)]}
    if not arguments.no_peer:
        peer = Path(__file__).resolve().parent / "torch_cuda_throughput.py"
        commands["PyTorch"] = [arguments.python, str(peer)] + (["--cpu"] if arguments.peer_on_cpu else [])
    for name, command in commands.items():
        try:
            programs[name] = Program(command, end)
            print(f"{name}: {json.dumps(programs[name].about)}", flush=True)
        except (RuntimeError, OSError, ValueError) as error:
            missing[name] = str(error)
            print(f"{name} cannot take part: {error}", flush=True)
    if "lockstep" not in programs:
        return 77
    rows = []
    for row in arguments.rows.split(","):
        # A row that is cut off says nothing.
        if rows and time.monotonic() + 1.2 * slowest > end:
            print(f"no time for {row}", flush=True)
            continue
        start = time.monotonic()
        rows.append(measure(programs, row, arguments))
        slowest = max(time.monotonic() - start, slowest if len(rows) > 1 else 0)
        print("\n".join(markdown(rows[-1:]).splitlines()[2:]), flush=True)
        if arguments.json:
            about = {name: program.about for name, program in programs.items()}
            arguments.json.write_text(json.dumps({"about": about, "missing": missing, "rows": rows}, indent=1) + "\n")
        if arguments.markdown:
            arguments.markdown.write_text(markdown(rows) + "\n")
    for program in programs.values():
        program.close()
    print("\n" + markdown(rows))
    # Without our own figures there is no result.
    return 0 if all("lockstep" in row["contestants"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
