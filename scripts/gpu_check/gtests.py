"""Runs GoogleTest programs on the device, so that one test that crashes or hangs hides nothing of the others."""

import concurrent.futures
import os
import re
import selectors
import subprocess
import tempfile
import time

import steps
from steps import Failure, NotHere, OutOfTime, run

FILLS_THE_DEVICE = re.compile(r"CudaLimits\.")  # these run alone


def on_the_device(machine):
    """As ctest does. Ranks are threads here: a kernel that is loaded at its first launch waits for the device, on which a
    collective of another rank may wait for that very kernel. On one GPU there are no such ranks, and loading all of
    CUDA's libraries takes each process seconds."""
    eager = {"CUDA_MODULE_LOADING": "EAGER"} if machine.devices() > 1 else {}
    return {"LOCKSTEP_TEST_DEVICE": "cuda:0", **eager}


SILENCE = 120  # seconds without a line after which the running test counts as hung
LINE = re.compile(r"\[ +(RUN|OK|FAILED|SKIPPED) +\] (\S+?)(?:,| \(|$)")


def list_tests(machine, entry, limit=60):
    """Full names. Throws Failure if the program does not start."""
    outcome = run([entry["program"], "--gtest_list_tests", f"--gtest_filter={entry['filter']}"], limit,
                  machine.environment())
    if not outcome.ok:
        raise Failure(f"{entry['name']} {outcome.why()}", outcome.output)
    names, suite = [], ""
    for line in outcome.output.splitlines():
        text = line.split("#")[0].rstrip()
        if line.startswith("  "):
            names.append(suite + text.strip())
        elif text.endswith("."):
            suite = text
    return names


class Tests:
    """Results by test: "passed", "failed", "skipped", "crashed", "hung"; and what failing ones printed."""

    def __init__(self):
        self.results = {}
        self.output = {}

    def count(self, *kinds):
        return sum(1 for result in self.results.values() if result in kinds)


def watch(process, end):
    """Yields the lines of its output; kills it after a long silence or at the end of the time."""
    selector = selectors.DefaultSelector()
    selector.register(process.stdout, selectors.EVENT_READ)
    buffer, heard = b"", time.monotonic()
    while True:
        now = time.monotonic()
        if now > min(end, heard + SILENCE):
            steps.end_group(process)
            process.wait()
            yield None  # it was us
            return
        if not selector.select(timeout=1.0):
            continue
        data = os.read(process.stdout.fileno(), 65536)
        if not data:
            process.wait()
            return
        heard = time.monotonic()
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")


def run_some(machine, program, names, end, environment, into, prefix=()):
    """Runs these tests in one process, and what a crash left over in others. Returns the names it had no time for."""
    left = list(names)
    while left and time.monotonic() < end - 1:
        with tempfile.NamedTemporaryFile("w", suffix=".flags") as flags:
            # A command line or variable would be too short for all names.
            flags.write("--gtest_filter=" + ":".join(left) + "\n")
            flags.flush()
            process = subprocess.Popen([*prefix, program, f"--gtest_flagfile={flags.name}"], stdin=subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
                                       start_new_session=True)
            running, text, seen, stopped = None, [], set(), False
            for line in watch(process, end):
                if line is None:
                    stopped = True
                    break
                found = LINE.match(line)
                if found and found[1] == "RUN":
                    running, text = found[2], []
                elif found and running == found[2]:
                    seen.add(running)
                    into.results[running] = {"OK": "passed", "FAILED": "failed", "SKIPPED": "skipped"}[found[1]]
                    if found[1] == "FAILED":
                        into.output[running] = "\n".join(text)[:2000]
                    running = None
                else:
                    text.append(line)
            steps.end_group(process)
            process.stdout.close()
        if running and not (stopped and time.monotonic() >= end):
            seen.add(running)
            into.results[running] = "hung" if stopped else "crashed"
            into.output[running] = "\n".join(text)[-2000:]
        if not seen:
            if not stopped:
                raise Failure(f"{os.path.basename(program)} ended with status {process.returncode} before any test",
                              "\n".join(text))
            break
        left = [name for name in left if name not in seen]
    return left


def run_program(recorder, machine, entry, limit, jobs, alone=30, only=None):
    """All tests of a program. Those that fail are run again, each in a process of its own: what one test does to the
    device can make all after it fail."""
    names = list_tests(machine, entry)
    if only:
        names = [name for name in names if re.search(only, name)]
    if not names:
        raise Failure(f"{entry['name']} has no tests")
    environment = machine.environment(**on_the_device(machine))
    time_left = recorder.left(limit)
    end = time.monotonic() + time_left
    tests = Tests()
    greedy = [name for name in names if FILLS_THE_DEVICE.match(name)]
    others = [name for name in names if name not in greedy]
    parts = [part for part in (others[i::jobs] for i in range(jobs)) if part]
    with concurrent.futures.ThreadPoolExecutor(max(1, len(parts))) as pool:
        done = [pool.submit(run_some, machine, entry["program"], part, end, environment, tests) for part in parts]
        unfinished = [name for job in done for name in job.result()]
    unfinished += run_some(machine, entry["program"], greedy, end, environment, tests)
    bad = [name for name in names if tests.results.get(name) in ("failed", "crashed", "hung")]
    again = Tests()
    for name in bad[:alone]:
        if tests.results[name] != "hung" and time.monotonic() < end - 5:
            run_some(machine, entry["program"], [name], end, environment, again)
    data = {"tests": len(names), "passed": tests.count("passed"), "skipped": tests.count("skipped"),
            "no_time": len(unfinished), "results": tests.results,
            "failures": {name: {"result": tests.results[name], "alone": again.results.get(name, "not tried"),
                                "output": tests.output.get(name, "")} for name in bad[:60]}}
    note = (f"{data['passed']} of {len(names)} passed, {len(bad)} failed, {data['skipped']} skipped"
            + (f", {len(unfinished)} had no time" if unfinished else ""))
    if unfinished and not bad and time_left < limit:  # the budget's fault, not the tests'
        late = OutOfTime(f"out of time: {note}")
        late.data = data
        raise late
    if bad or unfinished:
        lonely = sum(1 for result in again.results.values() if result == "passed")
        if lonely:
            note += f"; {lonely} of {len(again.results)} pass when run alone"
        failure = Failure(note, "\n".join(f"{name} ({tests.results[name]}): {tests.output.get(name, '')[:600]}"
                                          for name in bad[:8]))
        failure.data = data
        raise failure
    if not data["passed"]:
        raise NotHere(note)
    return note, data


def check(recorder, machine, size):
    jobs = 1 if machine.emulated else min(4, max(1, (os.cpu_count() or 2) // 4))
    for entry in machine.programs["tests"]:
        if machine.emulated and size.tests is not None and entry["name"] not in size.tests:
            continue
        recorder.step("tests", entry["name"], lambda entry=entry: run_program(
            recorder, machine, entry, size.tests_limit, jobs, only=size.tests_only))


def ends_alone(recorder, machine, entry, limit, only):
    """Each of these tests in a process of its own, whose end counts too: what is destroyed after main() may hang or
    crash."""
    names = [name for name in list_tests(machine, entry) if re.search(only, name)]
    if not names:
        raise Failure(f"{entry['name']} has no tests {only}")
    environment, skipped = machine.environment(**on_the_device(machine)), 0
    for name in names:
        outcome = run([entry["program"], f"--gtest_filter={name}"], recorder.left(limit), environment)
        if not outcome.ok:
            raise Failure(f"{name} {outcome.why()}", outcome.output)
        skipped += "[  SKIPPED ]" in outcome.output
    if skipped == len(names):
        raise NotHere("all of them are skipped here")
    return f"{len(names) - skipped} processes ended well"


def check_graphs(recorder, machine, size):
    for entry in machine.programs["tests"]:
        if not re.search("parallel|nccl", entry["name"]) or (machine.emulated and entry["name"] not in size.tests):
            continue
        recorder.step("graphs", f"each test of {entry['name']} alone, to the end of its process",
                      lambda entry=entry: ends_alone(recorder, machine, entry, 120, size.graphs_only))


SANITIZER_ERROR = 86
CLEAN = re.compile(r"ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards")


# What runs under the tools: kernels under all, and under memcheck what lives longer than a kernel. Graphs need the
# cache of memory; kernels run without it: a block that its tensor has left is gone then, and the tool sees who uses it.
GRAPHS = re.compile("Captur|Graph|Replay")


def check_with(recorder, machine, tool, size):
    steps = [("test_cuda", False, tool)]
    if tool == "memcheck":
        steps += [("test_cuda", True, f"{tool}, graphs of test_cuda"),
                  ("test_parallel_cuda", True, f"{tool}, test_parallel_cuda"),
                  ("test_nccl_cuda", None, f"{tool}, test_nccl_cuda")]
    for program, graphs, title in steps:
        recorder.step("sanitizer", title,
                      lambda program=program, graphs=graphs: sanitize(recorder, machine, tool, size, program, graphs))


def sanitize(recorder, machine, tool, size, name, graphs):
    """One of compute-sanitizer's tools over tests, several processes at a time. graphs: those of graphs, the others, or
    (None) all."""
    program = next((entry for entry in machine.programs["tests"] if entry["name"] == name), None)
    found = run(["compute-sanitizer", "--version"], 30)
    if not found.ok:
        raise NotHere("compute-sanitizer is not available")
    if not program:
        raise NotHere(f"this build has no {name}")
    names = [test for test in list_tests(machine, program)
             if graphs in (None, bool(GRAPHS.search(test))) and not FILLS_THE_DEVICE.match(test)]
    jobs = min(12, max(1, (os.cpu_count() or 2) - 2))
    environment = machine.environment(**on_the_device(machine), LOCKSTEP_CUDA_MEMORY_CACHE="1" if graphs else "0")
    prefix = ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(SANITIZER_ERROR), "--print-limit", "5"]
    end = time.monotonic() + recorder.left(size.sanitizer_limit)
    tests, reports, unfinished = Tests(), [], []

    def part(mine):
        # Small pieces: a report then names few tests, and little is lost at the end of the time.
        left = list(mine)
        while left and time.monotonic() < end - 1:
            piece, left = left[:25], left[25:]
            with tempfile.NamedTemporaryFile("w", suffix=".flags") as flags:
                flags.write("--gtest_filter=" + ":".join(piece) + "\n")
                flags.flush()
                outcome = run([*prefix, program["program"], f"--gtest_flagfile={flags.name}"], end - time.monotonic(),
                              environment)
            for line in outcome.output.splitlines():
                match = LINE.match(line)
                if match and match[1] != "RUN":
                    tests.results[match[2]] = {"OK": "passed", "FAILED": "failed", "SKIPPED": "skipped"}[match[1]]
            if outcome.timed_out:
                left = [name for name in piece if name not in tests.results] + left
                break
            if "Device not supported" in outcome.output:
                raise NotHere("compute-sanitizer does not support this device or its driver")
            if not outcome.ok or not CLEAN.search(outcome.output):
                complaints = [line for line in outcome.output.splitlines()
                              if "=========" in line or line.startswith("[  FAILED  ] ")]
                reports.append("\n".join(complaints)[:3000] or outcome.output[-1500:])
        return left

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for left in pool.map(part, [names[i::jobs] for i in range(jobs)]):
            unfinished += left
    data = {"tests": len(names), "ran": len(tests.results), "passed": tests.count("passed"), "no_time": len(unfinished),
            "reports": reports[:20]}
    note = f"{data['ran']} of {len(names)} tests ran under it, {len(reports)} reports"
    if reports:
        failure = Failure(note, reports[0])
        failure.data = data
        raise failure
    if not data["ran"]:
        raise NotHere(note)
    return note + (f"; {len(unfinished)} had no time" if unfinished else ", clean"), data
