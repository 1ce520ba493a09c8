"""mnist_train on the device: all modes against each other and against the CPU, lockstep mode, time to an accuracy."""

import gzip
import json
import os
import pathlib
import random
import re
import statistics
import struct
import subprocess
import threading
import time

import steps
from steps import Failure, NotHere

TOLERANCE = 1e-4  # of a loss, relative
# Whose losses are held to it. Batch norm carries what rounding makes of one image to all others: there the CPU's own
# kernels and its reference, which sum in another order, are 1e-5 apart after 20 steps and 4e-5 after 40.
FIRST_STEPS = {"lenet-bn": 20}
FIRST_STEPS_OF_OTHERS = 50
ACCURACY = 0.005

# Two ranks on one GPU: each claims a host of its own, and NCCL then keeps to sockets. For correctness, never for speed.
SHARED_GPU = {"NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1",
              "NCCL_SHM_DISABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MNNVL_ENABLE": "0", "NCCL_MAX_NCHANNELS": "1",
              "NCCL_PROTO": "Simple"}
ON_ONE_GPU = 'export NCCL_HOSTID=gpu-check-$RANK LOCAL_RANK=0; exec "$0" "$@"'

RESULT = re.compile(r"result: test_accuracy=([0-9.]+) test_loss=(\S+) steps=(\d+) seconds=([0-9.]+) images_per_s=(\d+) "
                    r"weights_sha256=([0-9a-f]+)")
EVALUATION = re.compile(r"epoch \d+: test accuracy ([0-9.]+)")


def write_made_up_data(folder, train, test):
    """Ten patterns with noise, in MNIST's format, for machines without MNIST: a net learns them at once."""
    draw = random.Random(7)
    patterns = [[draw.choice((0, 200)) for _ in range(49)] for _ in range(10)]
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, count in (("train", train), ("t10k", test)):
        labels = bytes(draw.randrange(10) for _ in range(count))
        images = bytearray()
        for label in labels:
            noise = draw.randbytes(784)
            images += bytes(min(255, patterns[label][(i // 28 // 4) * 7 + i % 28 // 4] + noise[i] % 56)
                            for i in range(784))
        for name, header, data in ((f"{prefix}-images-idx3-ubyte", struct.pack(">4i", 2051, count, 28, 28), images),
                                   (f"{prefix}-labels-idx1-ubyte", struct.pack(">2i", 2049, count), labels)):
            (folder / name).write_bytes(header + data)


def has_mnist(folder):
    if not folder:
        return False
    for name in ("train-images-idx3-ubyte", "t10k-images-idx3-ubyte"):
        paths = [pathlib.Path(folder) / (name + end) for end in ("", ".gz")] + [
            pathlib.Path(folder) / "mnist" / (name + end) for end in ("", ".gz")]
        path = next((path for path in paths if path.is_file()), None)
        if not path:
            return False
        with (gzip.open(path) if path.suffix == ".gz" else open(path, "rb")) as file:
            if struct.unpack(">2i", file.read(8))[1] not in (60000, 10000):
                return False
    return True


class Training:
    def __init__(self, recorder, machine, size, data, real, folder):
        self.recorder = recorder
        self.machine = machine
        self.size = size
        self.data = data
        self.real = real  # the data are MNIST
        self.folder = pathlib.Path(folder)
        self.trainer = machine.program("mnist_train")
        self.launcher = machine.program("lockstep_run")
        self.devices = machine.devices()
        self.runs = {}

    def modes(self):
        """Options, and whether a launcher makes two ranks: None, "shared" (one GPU) or "own"."""
        found = {"single": (["--mode", "single"], None),
                 "single, no graph": (["--mode", "single", "--no-graph"], None),
                 "dp 0,0": (["--mode", "dp", "--devices", "0,0"], None),
                 "ddp, 2 ranks on one GPU": (["--mode", "ddp"], "shared"),
                 "ddp, 2 ranks on one GPU, no graph": (["--mode", "ddp", "--no-graph"], "shared")}
        if self.devices >= 2:
            found["dp 0,1"] = (["--mode", "dp", "--devices", "0,1"], None)
            found["ddp, 2 GPUs"] = (["--mode", "ddp"], "own")
        return found

    def train(self, mode, options, limit, device="cuda"):
        """Output of a run, its metrics and result."""
        modes = {**self.modes(), "cpu": (["--mode", "single"], None)}
        mode_options, ranks = modes[mode]
        self.folder.mkdir(parents=True, exist_ok=True)
        metrics = self.folder / "metrics.jsonl"
        metrics.unlink(missing_ok=True)
        command = [self.trainer, *mode_options, "--device", "cpu" if mode == "cpu" else device, "--data-dir", self.data,
                   "--metrics", metrics, "--no-progress", *options]
        more = {"LOCKSTEP_LOG_LEVEL": "info"}  # tells why steps are not captured
        if ranks:
            shared = ["bash", "-c", ON_ONE_GPU] if ranks == "shared" else []
            more |= SHARED_GPU if ranks == "shared" else {}
            command = [self.launcher, "--nproc-per-node", "2", "--", *shared, *command]
        output = self.recorder.command(command, limit, self.machine.environment(**more))
        found = RESULT.search(output)
        if not found:
            raise Failure("mnist_train printed no result", output)
        lost = re.search(r"(?:no CUDA graph|not captured as a CUDA graph): .*", output)
        without = "no graph" in mode or mode.startswith("dp") or "--lockstep" in options
        if lost and not without:
            raise Failure(f"steps were not captured: {lost[0]}", output)
        losses = [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]
        return {"output": output, "losses": losses, "accuracy": float(found[1]), "steps": int(found[3]),
                "seconds": float(found[4]), "images_per_s": int(found[5]), "sha256": found[6]}

    def curve(self, mode, reference, options, what):
        run = self.train(mode, options, self.size.train_limit)
        if what not in self.runs:
            self.runs[what] = self.train(reference, options, self.size.train_limit)
        expected = self.runs[what]
        if len(run["losses"]) != len(expected["losses"]):
            raise Failure(f"{len(run['losses'])} steps, {reference} {len(expected['losses'])}", run["output"])
        pairs = list(zip(run["losses"], expected["losses"]))
        first = FIRST_STEPS.get(what.split()[0], FIRST_STEPS_OF_OTHERS)
        off = [abs(a - b) / abs(b) for a, b in pairs[:first]]
        worst, gap = max(off), abs(run["accuracy"] - expected["accuracy"])
        agree = all(one <= TOLERANCE for one in off)  # max() may miss a NaN
        note = (f"losses within {worst:.1e} of {reference}'s in the first {len(off)} steps; final accuracy "
                f"{run['accuracy']:.4f}, there {expected['accuracy']:.4f}")
        data = {"worst": worst, "accuracy": run["accuracy"], "reference_accuracy": expected["accuracy"],
                "steps": run["steps"], "images_per_s": run["images_per_s"]}
        if not agree or not gap <= ACCURACY + 1e-9:
            failure = Failure(note, "\n".join(f"step {i}: {a!r}, {reference} {b!r}" for i, (a, b) in enumerate(pairs[:60])))
            failure.data = data
            raise failure
        return note, data

    def lockstep(self, options):
        hashes = {}
        for mode in self.modes():
            if "no graph" in mode:
                continue  # lockstep steps are never captured
            hashes[mode] = self.train(mode, [*options, "--lockstep", "8"], self.size.train_limit)["sha256"]
        note = f"{len(hashes)} ways of training, weights {sorted(set(hashes.values()))[0][:12]}..."
        if len(set(hashes.values())) != 1:
            raise Failure("weights differ", "\n".join(f"{mode}: {sha}" for mode, sha in hashes.items()))
        return note, hashes

    def portable(self, options):
        """Our plain kernels with the CPU's order of sums: the same weights, bit for bit, and every loss."""
        options = [*options, "--lockstep", "8"]
        expected = self.train("cpu", options, self.size.train_limit)
        runs = {mode: self.train(mode, [*options, "--lockstep-portable"], self.size.train_limit)
                for mode in ("single", "dp 0,0")}
        for mode, run in runs.items():
            if run["losses"] != expected["losses"] or run["sha256"] != expected["sha256"]:
                pairs = enumerate(zip(run["losses"], expected["losses"]), 1)
                first = next((f"; the first of {len(expected['losses'])} losses to differ is that of step {i}: {a!r}, on "
                              f"the CPU {b!r}" for i, (a, b) in pairs if a != b), "; all losses are equal")
                raise Failure(f"{mode}: weights {run['sha256'][:12]}..., on the CPU {expected['sha256'][:12]}...{first}",
                              run["output"])
        return f"weights {expected['sha256'][:12]}... as on the CPU, {expected['steps']} steps", {
            "weights_sha256": expected["sha256"], "steps": expected["steps"]}

    def mixed_precision(self, amp, options):
        outcome = steps.run([self.trainer, "--help"], 30, self.machine.environment())
        if "--amp" not in outcome.output:
            raise NotHere("mnist_train has no --amp")
        plain = self.train("single", options, self.size.train_limit)
        run = self.train("single", [*options, "--amp", amp], self.size.train_limit)
        note = f"final accuracy {run['accuracy']:.4f}, float32 {plain['accuracy']:.4f}"
        data = {"accuracy": run["accuracy"], "float32": plain["accuracy"], "images_per_s": run["images_per_s"]}
        if not abs(run["accuracy"] - plain["accuracy"]) <= 2 * ACCURACY:
            failure = Failure(note, run["output"])
            failure.data = data
            raise failure
        return note, data

    def time_to(self, target, seed, options):
        """(from the start of the process, training alone, best accuracy); None where it was not reached."""
        command = [self.trainer, "--mode", "single", "--device", "cuda", "--data-dir", self.data, "--seed", str(seed),
                   "--no-progress", *options]
        limit = self.recorder.left(self.size.train_limit)
        start = time.monotonic()
        process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True, env=self.machine.environment(), start_new_session=True)
        late = threading.Timer(limit, steps.end_group, (process,))  # also if it says nothing any more
        late.start()
        reached, best, text = None, 0.0, ""
        for line in process.stdout:
            text += line
            found = EVALUATION.match(line)
            if found:
                best = max(best, float(found[1]))
                if reached is None and float(found[1]) >= target:
                    reached = time.monotonic() - start
        process.wait()
        late.cancel()
        if process.returncode != 0:
            if time.monotonic() - start >= limit:
                raise Failure(f"mnist_train had not ended after {limit:.0f} s", text)
            raise Failure(f"mnist_train ended with status {process.returncode}", text)
        result = RESULT.search(text)
        return reached, float(result[4]) if reached is not None else None, best

    def time_to_accuracy(self, target, options):
        if not self.real:
            raise NotHere("needs MNIST: set LOCKSTEP_DATA")
        rows = [self.time_to(target, seed, options) for seed in range(1, 6)]
        data = {"options": options, "target": target,
                "rows": [{"seed": seed, "with_start": row[0], "training": row[1], "best": row[2]}
                         for seed, row in enumerate(rows, 1)]}
        missed = [row for row in rows if row[0] is None]
        if missed:
            failure = Failure(f"{len(missed)} of {len(rows)} seeds did not reach {target}: "
                              + ", ".join(f"{row[2]:.4f}" for row in rows))
            failure.data = data
            raise failure
        data["median_with_start"] = statistics.median(row[0] for row in rows)
        data["median_training"] = statistics.median(row[1] for row in rows)
        return (f"median {data['median_training']:.2f} s of training, {data['median_with_start']:.2f} s with start-up and "
                f"evaluation ({min(row[2] for row in rows):.4f} at least)", data)


def check_curve(training, mode):
    # Steps small enough that no rounding flips a pooling window's maximum, which alone is 1e-4 of a loss.
    gentle = ["--model", "lenet", "--lr", "0.005", "--momentum", "0.5", "--epochs", "1", *training.size.curve]
    reference = "cpu" if mode.startswith("single") else "single"
    training.recorder.step("training", f"curve, lenet, {mode}",
                           lambda: training.curve(mode, reference, gentle, f"lenet {reference}"))


def check_curves(recorder, machine, size, data, real, folder):
    training = Training(recorder, machine, size, data, real, folder)
    for mode, (_, ranks) in training.modes().items():
        if ranks != "shared":
            check_curve(training, mode)
    for model in size.curve_models:
        recorder.step("training", f"curve, {model}, single", lambda model=model: training.curve(
            "single", "cpu", ["--model", model, "--lr", "0.005", "--momentum", "0.5", *size.curve], f"{model} cpu"))
    for amp in ("bf16", "fp16"):
        recorder.step("training", f"mixed precision, {amp}",
                      lambda amp=amp: training.mixed_precision(amp, ["--model", "lenet", *size.epoch]))


def check_portable(recorder, machine, size, data, real, folder):
    training = Training(recorder, machine, size, data, real, folder)
    for model in size.portable_models:
        recorder.step("training", f"the CPU's bits, {model}",
                      lambda model=model: training.portable(["--model", model, *size.lockstep]))


def check_hashes(recorder, machine, size, data, real, folder):
    training = Training(recorder, machine, size, data, real, folder)
    for model, optimizer in size.lockstep_nets:
        recorder.step("training", f"lockstep, {model}, {optimizer}", lambda model=model, optimizer=optimizer: training.lockstep(
            ["--model", model, "--optimizer", optimizer, *size.lockstep]))


def check_shared(recorder, machine, size, data, real, folder):
    """Two ranks on one GPU, through NCCL: what one GPU can tell of several processes."""
    training = Training(recorder, machine, size, data, real, folder)
    for mode, (_, ranks) in training.modes().items():
        if ranks == "shared":
            check_curve(training, mode)


def check_time(recorder, machine, size, data, real, folder):
    training = Training(recorder, machine, size, data, real, folder)
    for name, options in size.recipes:
        recorder.step("time to 99 %", name, lambda options=options: training.time_to_accuracy(0.99, options))
