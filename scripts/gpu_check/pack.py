"""Packs what scripts/gpu_check.sh needs on a machine without a compiler. Layout of the package:

    gpu_check.sh, gpu_check/, bench/*.py     the scripts
    bin/, lib/                               stripped programs and the shared libraries they need
    lib/fallback/                            the compiler's own libraries, for machines with older ones
    tests/golden/, docs/                     recorded values, and which of them are meant to differ
    programs.json                            what is where, commit and build
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from machine import Machine  # noqa: E402

# Every system with glibc has these, in versions that fit each other.
SYSTEM = re.compile(r"^(linux-vdso|ld-linux-x86-64|ld-linux-aarch64|libc|libm|libdl|libpthread|librt|libresolv)\.so")
COMPILER = re.compile(r"^(libstdc\+\+|libgcc_s)\.so")
LIMIT_MB = 60


def needed(path):
    """Name and file of each shared library, all levels."""
    found = {}
    for line in subprocess.check_output(["ldd", path], text=True).splitlines():
        match = re.match(r"\s*(\S+) => (\S+) \(", line)
        if match:
            found[match[1]] = match[2]
        elif "not found" in line:
            sys.exit(f"gpu_check: {path}: {line.strip()}")
    return found


def copy_stripped(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755)
    subprocess.run(["strip", "--strip-unneeded", target], check=True)


def required_versions(folder):
    """The newest version of glibc and of the compiler's library that the files ask for."""
    newest = {}
    for path in sorted([*folder.glob("bin/*"), *folder.glob("lib/*.so*")]):
        text = subprocess.run(["objdump", "-T", path], text=True, capture_output=True, check=True).stdout
        for kind, version in re.findall(r"\b(GLIBC|GLIBCXX|CXXABI)_(\d[\d.]*)", text):
            key = tuple(map(int, version.split(".")))
            newest[kind] = max(newest.get(kind, (0,)), key)
    return {kind: ".".join(map(str, version)) for kind, version in newest.items()}


def pack(root, build, folder, data):
    programs = json.loads((build / "gpu_check/programs.json").read_text())
    if programs["emulated"]:
        sys.exit("gpu_check: this build is for the emulated device")
    files = [*programs["programs"].values(), *(entry["program"] for entry in programs["tests"]), programs["plugin"]]
    libraries = {}
    for path in filter(None, files):
        copy_stripped(path, folder / "bin" / Path(path).name)
        libraries.update(needed(path))
    for name, path in libraries.items():
        if COMPILER.match(name):
            copy_stripped(path, folder / "lib/fallback" / name)
        elif not SYSTEM.match(name):
            copy_stripped(path, folder / "lib" / name)
    relative = lambda path: f"bin/{Path(path).name}" if path else ""  # noqa: E731
    programs.update(commit=Machine(programs, root).commit(), plugin=relative(programs["plugin"]),
                    programs={name: relative(path) for name, path in programs["programs"].items()},
                    tests=[{**entry, "program": relative(entry["program"])} for entry in programs["tests"]],
                    required=required_versions(folder))
    del programs["source"]
    (folder / "programs.json").write_text(json.dumps(programs, indent=1) + "\n")
    shutil.copy(root / "scripts/gpu_check.sh", folder)
    shutil.copytree(root / "scripts/gpu_check", folder / "gpu_check", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "bench").mkdir()
    for script in [*(root / "bench").glob("*cuda*.py"), root / "bench/torch_train_throughput.py"]:
        shutil.copy(script, folder / "bench")
    shutil.copytree(root / "tests/golden", folder / "tests/golden")
    (folder / "docs").mkdir()
    shutil.copy(root / "docs/pytorch_operations.md", folder / "docs")  # says which samples are meant to differ
    if data:
        (folder / "data/mnist").mkdir(parents=True)
        files = [path for path in [*Path(data).glob("*-ubyte*"), *Path(data).glob("mnist/*-ubyte*")] if path.is_file()]
        if len(files) != 4:
            sys.exit(f"gpu_check: {data} holds {len(files)} of MNIST's 4 files")
        for path in files:
            shutil.copy(path, folder / "data/mnist")
    return programs


def size_mb(path):
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(os.path.getsize(file) for file in files) / 1e6


def main():
    parser = argparse.ArgumentParser()
    for name in ("--root", "--build", "--package"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--data")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "lockstep-gpu-check"
        folder.mkdir()
        programs = pack(arguments.root, arguments.build, folder, arguments.data)
        unpacked = size_mb(folder)
        if arguments.package.name.endswith(".tar.gz"):
            arguments.package.parent.mkdir(parents=True, exist_ok=True)
            with tarfile.open(arguments.package, "w:gz") as file:
                file.add(folder, "lockstep-gpu-check")
        else:
            if arguments.package.exists():
                if not (arguments.package / "programs.json").is_file():
                    sys.exit(f"gpu_check: {arguments.package} is there and is no package; remove it or name another folder")
                shutil.rmtree(arguments.package)
            shutil.copytree(folder, arguments.package)
    size = size_mb(arguments.package)
    print(f"gpu_check: {arguments.package}: {size:.1f} MB ({unpacked:.1f} MB unpacked), commit {programs['commit']}, needs "
          + ", ".join(f"{kind} {version}" for kind, version in sorted(programs["required"].items())))
    return 0 if size <= LIMIT_MB else 1


if __name__ == "__main__":
    sys.exit(main())
