"""See scripts/gpu_check.sh --help."""

import argparse
import dataclasses
import json
import os
import py_compile
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import gtests  # noqa: E402
import jobs  # noqa: E402
import report  # noqa: E402
import speed  # noqa: E402
import training  # noqa: E402
from machine import Machine  # noqa: E402
from steps import FAILED, Failure, NotHere, Recorder, run  # noqa: E402

# What matters most comes first: ten minutes tell much. Equal bits on CPU and GPU tell most, and take seconds.
SECTIONS = ["portable", "tests", "curves", "hashes", "graphs", "shared-gpu", "faults", "speed", "time", "kernels", "memcheck",
            "speed-rest", "initcheck", "synccheck", "racecheck", "soak"]
# The most that a section may take of a budget: one that hangs leaves time to the others. What is not named: a third.
SHARES = {"portable": 0.2, "tests": 0.4}


@dataclasses.dataclass
class Size:
    """How much of everything."""
    tests: tuple = None  # None: all programs
    tests_only: str = None
    tests_limit: float = 400
    graphs_only: str = "Captur|Graph|Replay|Ends"
    train_limit: float = 150
    sanitizer_limit: float = 400
    speed_limit: float = 500
    fault_timeout: int = 20  # seconds; the deadline of the job's operations
    fault_epoch: int = 0  # after which a rank is stopped or killed; by then graphs are replayed
    endless: tuple = ("--epochs", "1000")
    soak: float = 600
    curve: tuple = ("--max-steps", "200")
    curve_models: tuple = ("mlp", "cnn", "lenet-bn")
    lockstep: tuple = ("--epochs", "1", "--max-steps", "100")
    portable_models: tuple = ("lenet", "mlp")
    lockstep_nets: tuple = (("lenet", "sgd"), ("lenet", "adamw"), ("cnn", "sgd"), ("lenet-bn", "sgd"))
    epoch: tuple = ("--epochs", "1")
    recipes: tuple = (
        ("lenet, batch 64, 3 epochs", ["--model", "lenet", "--epochs", "3", "--batch-size", "64", "--lr", "0.03",
                                       "--schedule", "one-cycle"]),
        ("lenet, batch 128, 3 epochs", ["--model", "lenet", "--epochs", "3", "--batch-size", "128", "--lr", "0.1",
                                        "--schedule", "one-cycle"]))
    first_rows: tuple = ("lenet:64:float32", "cnn:256:bf16")
    other_rows: tuple = ("mlp:64:float32", "cnn:256:float32", "lenet:256:float32", "cnn:64:float32", "cnn:64:bf16",
                         "mlp:256:float32", "lenet:64:bf16", "lenet:256:bf16", "mlp:64:bf16", "mlp:256:bf16",
                         "resnet18:128:float32", "resnet18:128:bf16", "gpt:32:tf32", "gpt:32:bf16", "gpt_1024:16:bf16")
    speed: tuple = ()
    ddp: tuple = ("20", "2048", "256")


# To try these scripts out on the emulated device, which is ten thousand times slower.
TINY = Size(tests=("test_parallel_emulated_cuda", "test_ops", "test_core_cuda"), tests_only="Captured|linear|DynamicLibrary",
            graphs_only="ReplaysHaveTheBits|ValuesOfTheHost",
            curve=("--max-steps", "4", "--batch-size", "4"), curve_models=(),
            fault_timeout=25, fault_epoch=3, endless=("--epochs", "1000", "--batch-size", "20"), soak=0,
            lockstep=("--epochs", "1", "--max-steps", "2", "--batch-size", "8"), lockstep_nets=(("lenet", "sgd"),), portable_models=("lenet",),
            epoch=("--epochs", "1", "--max-steps", "4", "--batch-size", "4"), recipes=Size.recipes[:1],
            first_rows=("mlp:4:float32",), other_rows=(),
            speed=("--rounds", "2", "--seconds", "0.01", "--warmup", "4", "--images", "20", "--no-peer"),
            ddp=("2", "64", "8"))


def find_programs(root, build):
    """What gpu_check/programs.json of a build says, or programs.json of a package, whose paths are relative."""
    packed = root / "programs.json"
    if build is None and packed.is_file():
        programs = json.loads(packed.read_text())
        for entry in programs["tests"]:
            entry["program"] = str(root / entry["program"])
        programs["programs"] = {name: str(root / path) for name, path in programs["programs"].items()}
        programs["plugin"] = str(root / programs["plugin"]) if programs["plugin"] else ""
        # What the build machine's compiler brought: only where this machine's own is too old.
        if not run([programs["programs"]["mnist_train"], "--version"], 60).ok:
            programs["fallback_libraries"] = str(root / "lib/fallback")
        return programs
    build = Path(build) if build else root / "build/cuda"
    listed = build / "gpu_check/programs.json"
    if not listed.is_file():
        sys.exit(f"gpu_check: {listed} is not there; configure {build} with LOCKSTEP_CUDA=ON and build its target gpu_check")
    programs = json.loads(listed.read_text())
    for kind in (programs["tests"], programs["programs"]):
        for entry in list(kind):
            path = entry["program"] if isinstance(kind, list) else kind[entry]
            if not Path(path).is_file():
                kind.remove(entry) if isinstance(kind, list) else kind.pop(entry)
    return programs


def find_data(machine, wish, folder):
    """(folder, whether it holds MNIST)"""
    for place in (wish, os.environ.get("LOCKSTEP_DATA"), str(machine.root / "data/mnist")):
        if place and not machine.emulated and training.has_mnist(place):
            return place, True
    made_up = Path(folder) / "made-up"
    if machine.emulated:
        training.write_made_up_data(made_up, 40, 16)
    else:
        training.write_made_up_data(made_up, 6400, 1000)
    return str(made_up), False


def check_start(recorder, machine):
    """What can be known without a device: everything starts, and the scripts are sound."""
    def programs_start():
        names = {"mnist_train": ["--version"], "lockstep_run": ["--help"], "lockstep_doctor": ["--help"],
                 "cuda_ddp": ["--help"]}
        for name, path in machine.programs["programs"].items():
            outcome = run([path, *names.get(name, [])], 60, machine.environment())
            # One that has neither input nor a device.
            if not outcome.ok and not (name == "cuda_throughput" and outcome.status == 77):
                raise Failure(f"{name} {outcome.why()}", outcome.output)
        return ", ".join(machine.programs["programs"])

    def tests_list():
        counts = {entry["name"]: len(gtests.list_tests(machine, entry)) for entry in machine.programs["tests"]}
        if not counts or not all(counts.values()):
            raise Failure(f"a program lists no tests: {counts}")
        return ", ".join(f"{name} {count}" for name, count in counts.items()), counts

    def libraries_resolve():
        paths = [*machine.programs["programs"].values(), *(entry["program"] for entry in machine.programs["tests"])]
        for path in paths:
            outcome = run(["ldd", path], 60, machine.environment())
            if "not found" in outcome.output or not outcome.ok:
                raise Failure(f"libraries of {path} are missing", outcome.output)
        return f"{len(paths)} programs"

    def scripts_parse():
        scripts = [*sorted((machine.root / "bench").glob("*cuda*.py")), *sorted(Path(__file__).parent.glob("*.py"))]
        with tempfile.TemporaryDirectory() as folder:
            for number, script in enumerate(scripts):
                py_compile.compile(str(script), cfile=f"{folder}/{number}.pyc", doraise=True)
        return f"{len(scripts)} scripts"

    def tests_without_device():
        entry = next((entry for entry in machine.programs["tests"] if entry["name"] == "test_core_cuda"), None)
        if not entry:
            raise NotHere("this build has no test_core_cuda")
        outcome = run([entry["program"]], 120, machine.environment())
        if not outcome.ok:
            raise Failure(f"{entry['name']} {outcome.why()}", outcome.output)
        count = {kind: len(re.findall(rf"^\[ +{kind} +\] \S+ \(", outcome.output, re.M)) for kind in ("OK", "SKIPPED")}
        return f"{count['OK']} passed, {count['SKIPPED']} need one"

    for name, body in (("programs start", programs_start), ("test programs list their tests", tests_list),
                       ("shared libraries are found", libraries_resolve), ("scripts parse", scripts_parse),
                       ("tests that need no device", tests_without_device)):
        recorder.step("start", name, body, device=False)


def describe(machine, data, real, dry_run):
    versions, torch = machine.versions(), machine.torch()
    return {"device": machine.device_name(), "date": report.today(), "commit": machine.commit(),
            "build": machine.programs["build"], "emulated": machine.emulated, "dry_run": dry_run,
            "devices": machine.devices(), "driver": versions.get("driver"), "smi": machine.smi(),
            "cublaslt": versions.get("cublaslt"), "cudnn": versions.get("cudnn"), "nccl": versions.get("nccl"),
            "library_errors": {name: text for name, text in versions.items() if name.endswith("error")},
            "torch": torch.get("version", torch.get("error")), "torch_details": torch,
            "data": "MNIST" if real else "made up", "ops": machine.programs["ops"], "wheels": [Path(folder).name for folder in machine.wheels]}


def main():
    parser = argparse.ArgumentParser(prog="gpu_check.sh")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--build", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--data")
    parser.add_argument("--sections", default=",".join(SECTIONS))
    parser.add_argument("--budget", type=float, default=0)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--merge", nargs="+", type=Path)
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    packed = (root / "programs.json").is_file()
    start = time.monotonic()
    if arguments.merge:
        merged = report.merge([json.loads(path.read_text()) for path in arguments.merge])
        print(report.write(merged, arguments.out or root / "docs/validation"))
        return 0
    unknown = set(arguments.sections.split(",")) - set(SECTIONS)
    if unknown:
        parser.error(f"there is no section {', '.join(unknown)}; expected some of {','.join(SECTIONS)}")
    machine = Machine(find_programs(root, arguments.build), root)
    work = Path(tempfile.mkdtemp(prefix="lockstep-gpu-check-"))
    try:
        dry_run = arguments.dry_run
        if not dry_run and machine.devices() == 0:
            print("gpu_check: there is no CUDA device here: this is a dry run", flush=True)
            dry_run = True
        out = arguments.out
        if out is None and not packed:
            # What is no validation stays out of the source tree.
            validation = root / "docs/validation"
            out = (arguments.build or root / "build/cuda") / "gpu_check" if dry_run or machine.emulated else validation
        out = out or root / "report"
        size = TINY if machine.emulated else Size()
        data, real = find_data(machine, arguments.data, work)
        about = describe(machine, data, real, dry_run)
        print(json.dumps({key: value for key, value in about.items() if key != "ops"}, indent=1), flush=True)
        # Importing PyTorch for the first time, which describe() did, may take a minute.
        budget = max(arguments.budget - (time.monotonic() - start), 1) if arguments.budget else 0
        recorder = Recorder(out / (report.file_name(about) + ".json"), about, budget, dry_run)
        check_start(recorder, machine)
        bodies = {"portable": lambda: training.check_portable(recorder, machine, size, data, real, work / "train"),
                  "tests": lambda: gtests.check(recorder, machine, size),
                  "curves": lambda: training.check_curves(recorder, machine, size, data, real, work / "train"),
                  "hashes": lambda: training.check_hashes(recorder, machine, size, data, real, work / "train"),
                  "graphs": lambda: gtests.check_graphs(recorder, machine, size),
                  "shared-gpu": lambda: training.check_shared(recorder, machine, size, data, real, work / "train"),
                  "faults": lambda: jobs.check_faults(recorder, machine, size, data, work / "jobs"),
                  "soak": lambda: jobs.check_soak(recorder, machine, size, data),
                  "time": lambda: training.check_time(recorder, machine, size, data, real, work / "train"),
                  "speed": lambda: speed.check_first(recorder, machine, size, work / "speed"),
                  "kernels": lambda: speed.check_kernels(recorder, machine, size, work / "speed"),
                  "speed-rest": lambda: speed.check_rest(recorder, machine, size, work / "speed")}
        for tool in ("memcheck", "initcheck", "synccheck", "racecheck"):
            bodies[tool] = lambda tool=tool: gtests.check_with(recorder, machine, tool, size)
        for section in SECTIONS:
            if section in arguments.sections.split(","):
                with recorder.share(SHARES.get(section, 1 / 3)):
                    bodies[section]()
        path = report.write(recorder.result(), out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    failed = [step for step in recorder.steps if step["status"] == FAILED]
    print(f"gpu_check: {path}: {len(failed)} of {len(recorder.steps)} checks failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
