"""Where things are: the programs of a build or package, CUDA's libraries, PyTorch; and what their versions are."""

import ctypes
import json
import os
import pathlib
import subprocess
import sys

from steps import run

# What the libraries say of themselves, in a process of its own: a broken one must not end ours.
VERSIONS = """
import ctypes, json, sys
found = {}
def ask(name, file, function, by_pointer):
    try:
        library = ctypes.CDLL(file)
        if by_pointer:
            value = ctypes.c_int()
            getattr(library, function)(ctypes.byref(value))
            found[name] = value.value
        else:
            getattr(library, function).restype = ctypes.c_size_t
            found[name] = getattr(library, function)()
    except Exception as error:
        found[name] = None
        found[name + "_error"] = str(error)
for name, file, function, by_pointer in json.loads(sys.argv[1]):
    ask(name, file, function, by_pointer)
print(json.dumps(found))
"""

TORCH = """
import json
try:
    import torch
    found = {"version": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
             "sees_device": torch.cuda.is_available()}
    if found["sees_device"]:
        found["device"] = torch.cuda.get_device_name(0)
        found["devices"] = torch.cuda.device_count()
        p = torch.cuda.get_device_properties(0)
        found["capability"] = f"{p.major}.{p.minor}"
        found["memory_gib"] = round(p.total_memory / 2**30, 1)
except Exception as error:
    found = {"error": f"{type(error).__name__}: {error}"}
print(json.dumps(found))
"""


class Machine:
    """`programs`: what gpu_check/programs.json says."""

    def __init__(self, programs, root, python=sys.executable):
        self.programs = programs
        self.root = root  # scripts, bench and recorded values
        self.python = python
        self.emulated = programs["emulated"]
        self.wheels = self.find_wheels()

    def find_wheels(self):
        """Folders that hold nvidia/*/lib, as the Python that runs this sees them."""
        found = []
        for folder in sys.path:
            if folder and any(pathlib.Path(folder).glob("nvidia/*/lib/*.so*")) and folder not in found:
                found.append(folder)
        return found

    def environment(self, **more):
        environment = dict(os.environ)
        paths = [p for p in environment.get("LOCKSTEP_CUDA_LIBRARY_PATH", "").split(":") if p] + self.wheels
        if paths:
            environment["LOCKSTEP_CUDA_LIBRARY_PATH"] = ":".join(paths)
        fallback = self.programs.get("fallback_libraries")
        if fallback:
            environment["LD_LIBRARY_PATH"] = ":".join(filter(None, [environment.get("LD_LIBRARY_PATH"), fallback]))
        environment["LOCKSTEP_TEST_SOURCE_DIR"] = str(self.root)
        if self.programs["plugin"]:
            environment["LOCKSTEP_TEST_PLUGIN"] = self.programs["plugin"]
        if self.emulated:
            environment.setdefault("LOCKSTEP_EMULATED_CUDA_DEVICES", "1")
        environment.update({name: str(value) for name, value in more.items()})
        return environment

    def program(self, name):
        return self.programs["programs"].get(name)

    def library(self, file):
        for folder in self.wheels:
            for path in sorted(pathlib.Path(folder).glob(f"nvidia/*/lib/{file}")):
                return str(path)
        return file  # the loader may know

    def versions(self):
        asked = [["driver", "libcuda.so.1", "cuDriverGetVersion", True],
                 ["cublaslt", self.library(f"libcublasLt.so.{self.programs['cuda_major']}"), "cublasLtGetVersion", False],
                 ["cudnn", self.library("libcudnn.so.9"), "cudnnGetVersion", False],
                 ["nccl", self.library("libnccl.so.2"), "ncclGetVersion", True]]
        outcome = run([self.python, "-c", VERSIONS, json.dumps(asked)], 60)
        try:
            return json.loads(outcome.output.strip().splitlines()[-1])
        except (ValueError, IndexError):
            return {"error": outcome.output[-500:]}

    def torch(self):
        outcome = run([self.python, "-c", TORCH], 180)
        try:
            return json.loads(outcome.output.strip().splitlines()[-1])
        except (ValueError, IndexError):
            return {"error": f"the import {outcome.why()}: {outcome.output[-300:]}"}

    def devices(self):
        """How many, by the driver itself."""
        if self.emulated:
            return int(os.environ.get("LOCKSTEP_EMULATED_CUDA_DEVICES", "1"))
        try:
            driver = ctypes.CDLL("libcuda.so.1")
            count = ctypes.c_int()
            if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
                return 0
            return count.value
        except (OSError, AttributeError):
            return 0

    def device_name(self):
        if self.emulated:
            return "emulated device"
        try:
            driver = ctypes.CDLL("libcuda.so.1")
            device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
            if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
                driver.cuDeviceGetName(name, 256, device)
                return name.value.decode()
        except (OSError, AttributeError):
            pass
        return "no device"

    def smi(self):
        fields = "name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit"
        outcome = run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv"], 30)
        return outcome.output.strip() if outcome.ok else None

    def commit(self):
        if "commit" in self.programs:
            return self.programs["commit"]
        try:
            commit = subprocess.check_output(["git", "-C", str(self.root), "describe", "--always", "--dirty"],
                                             text=True, stderr=subprocess.DEVNULL)
            return commit.strip()
        except (OSError, subprocess.CalledProcessError):
            return "unknown"
