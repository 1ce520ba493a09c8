"""Running jobs of two ranks: one is stopped or killed while CUDA graphs are replayed, its memory is looked for on the
other's GPU, and many runs in a row end with the same bits."""

import os
import pathlib
import signal
import subprocess
import time

from steps import Failure, NotHere
from training import ON_ONE_GPU, RESULT, SHARED_GPU

# A rank that has ended or says nothing is found by the deadline; the launcher then needs a moment.
GRACE = 60


class Job:
    """mnist_train --mode ddp with two ranks under the launcher."""

    def __init__(self, machine, size, data, folder, shared=True):
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.log = open(folder / "output.txt", "w+")
        command = [machine.program("lockstep_run"), "--nproc-per-node", "2", "--",
                   *(["bash", "-c", ON_ONE_GPU] if shared else []), machine.program("mnist_train"), "--mode", "ddp",
                   "--device", "cuda", "--model", "lenet", "--data-dir", data, "--no-progress", "--timeout",
                   str(size.fault_timeout), *size.endless]
        self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=subprocess.STDOUT, start_new_session=True,
                                        env=machine.environment(**(SHARED_GPU if shared else {})))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        self.log.close()

    def processes(self):
        """Those of its session that live."""
        found = []
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                state, session = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0::3][:2]
            except (OSError, IndexError, ValueError):
                continue
            if int(session) == self.process.pid and state != "Z":
                found.append(int(folder.name))
        return found

    def rank(self, number):
        """The process of a rank."""
        for pid in self.processes():
            try:
                environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                name = pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
            except OSError:
                continue
            if f"RANK={number}".encode() in environment and name == "mnist_train":
                return pid
        raise Failure(f"there is no process of rank {number}", self.output())

    def left_over(self, limit):
        """Those that live though the launcher has ended. One that was killed needs a moment to be gone."""
        end = time.monotonic() + limit
        while (left := [pid for pid in self.processes() if pid != self.process.pid]) and time.monotonic() < end:
            time.sleep(0.05)
        return left

    def output(self):
        self.log.flush()
        return pathlib.Path(self.log.name).read_text()

    def wait_for_epoch(self, number, limit):
        """Until it has told of that epoch."""
        end = time.monotonic() + limit
        while f"epoch {number}:" not in self.output():
            if self.process.poll() is not None:
                raise Failure(f"the job ended with status {self.process.returncode} before epoch {number}", self.output())
            if time.monotonic() > end:
                raise Failure(f"the job has not come to epoch {number} within {limit:.0f} s", self.output())
            time.sleep(0.05)


def loses_a_rank(recorder, machine, size, data, folder, what):
    with Job(machine, size, data, folder) as job:
        job.wait_for_epoch(size.fault_epoch, recorder.left(size.train_limit))
        victim, start = job.rank(1), time.monotonic()
        os.kill(victim, what)
        try:
            status = job.process.wait(size.fault_timeout + GRACE)
        except subprocess.TimeoutExpired:
            raise Failure(f"the job goes on {size.fault_timeout + GRACE} s after {what.name} of rank 1", job.output())
        seconds, output = time.monotonic() - start, job.output()
        left = job.left_over(10)
        if status == 0 or "rank 1" not in output.lower():
            raise Failure(f"the job ended with status {status}, expected a failure that names rank 1", output)
        if left:
            raise Failure(f"{len(left)} processes are left", output)
        return f"ended after {seconds:.1f} s", {"seconds": seconds, "status": status}


def memory_on_the_first_gpu(recorder, machine, size, data, folder):
    """Each rank has its own GPU: rank 1 has nothing on the first."""
    if machine.emulated or machine.devices() < 2:
        raise NotHere("needs two GPUs")
    with Job(machine, size, data, folder, shared=False) as job:
        job.wait_for_epoch(size.fault_epoch, recorder.left(size.train_limit))
        listed = recorder.command(["nvidia-smi", "--query-compute-apps=pid,gpu_uuid,used_memory",
                                   "--format=csv,noheader,nounits"], 30)
        rows = [[cell.strip() for cell in line.split(",")] for line in listed.splitlines() if line.count(",") == 2]
        by_rank = {number: {uuid: int(memory) for pid, uuid, memory in rows if pid == str(job.rank(number))}
                   for number in (0, 1)}
    if not by_rank[0] or not by_rank[1]:
        raise NotHere("nvidia-smi lists no memory of these processes")
    if len(by_rank[1]) != 1 or set(by_rank[0]) & set(by_rank[1]):
        raise Failure(f"a rank has memory on the other's GPU: {by_rank}")
    return f"MiB by rank: {[sum(gpus.values()) for gpus in by_rank.values()]}", by_rank


def soak(recorder, machine, size, data):
    """The same training again and again: no failure, and the same bits each time."""
    end, hashes, limit = time.monotonic() + size.soak, [], size.train_limit
    while not hashes or (len(hashes) < 2 or time.monotonic() < end):
        output = recorder.command([machine.program("mnist_train"), "--mode", "single", "--device", "cuda", "--data-dir",
                                   data, "--no-progress", "--model", "lenet-bn", *size.curve], limit, machine.environment())
        hashes.append(RESULT.search(output)[6])
    if len(set(hashes)) != 1:
        raise Failure(f"{len(set(hashes))} different weights in {len(hashes)} runs", "\n".join(hashes))
    return f"{len(hashes)} runs, weights {hashes[0][:12]}..."


def check_faults(recorder, machine, size, data, folder):
    for what in (signal.SIGSTOP, signal.SIGKILL):
        recorder.step("faults", f"{what.name} of a rank while graphs are replayed",
                      lambda what=what: loses_a_rank(recorder, machine, size, data, folder, what))
    recorder.step("faults", "memory of a rank on the other's GPU",
                  lambda: memory_on_the_first_gpu(recorder, machine, size, data, folder))


def check_soak(recorder, machine, size, data):
    recorder.step("soak", "the same training again and again", lambda: soak(recorder, machine, size, data))
