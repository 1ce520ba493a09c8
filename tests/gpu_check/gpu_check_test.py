"""The parts of scripts/gpu_check that decide what is a failure, with programs that stand in for the real ones."""

import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile
import time
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"
sys.path[:0] = [str(SCRIPTS / "gpu_check"), str(SCRIPTS)]

import gpu_status  # noqa: E402
import gtests  # noqa: E402
import report  # noqa: E402
import speed  # noqa: E402
import steps  # noqa: E402
import training  # noqa: E402

# Has the tests that CASES names, each with what it does: pass, fail, crash, hang, skip, or "company": fail after others.
GTEST = """#!{python}
import os, signal, sys, time
cases = dict(item.split("=") for item in os.environ["CASES"].split(","))
chosen = list(cases)
for argument in sys.argv[1:]:
    if argument == "--gtest_list_tests":
        print("Suite.")
        for name in cases:
            print("  " + name + "  # GetParam() = 1")
        sys.exit(0)
    if argument.startswith("--gtest_flagfile="):
        chosen = [name.removeprefix("Suite.") for name in
                  open(argument.split("=")[1]).read().strip().removeprefix("--gtest_filter=").split(":")]
status, count = 0, 0
for name in chosen:
    print(f"[ RUN      ] Suite.{name}", flush=True)
    does = cases[name]
    if does == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if does == "hang":
        time.sleep(60)
    if does == "company":
        does = "fail" if count else "pass"
    count += 1
    if does == "fail":
        print("expected 1, found 2")
        status = 1
    print("[" + {"fail": "  FAILED  ", "pass": "       OK ", "skip": "  SKIPPED "}[does] + f"] Suite.{name} (3 ms)")
sys.exit(status)
"""


class FakeMachine:
    emulated = False
    python = sys.executable

    def devices(self):
        return 1

    def environment(self, **more):
        return {**os.environ, **{name: str(value) for name, value in more.items()}}


class WithFolder(unittest.TestCase):
    def setUp(self):
        self.holder = tempfile.TemporaryDirectory()
        self.addCleanup(self.holder.cleanup)
        self.folder = pathlib.Path(self.holder.name)

    def recorder(self, budget=0, dry_run=False):
        about = {"device": "Some GPU", "date": "2030-01-02", "commit": "abc", "build": "here"}
        return steps.Recorder(self.folder / "report.json", about, budget, dry_run)

    def step(self, body, **options):
        with contextlib.redirect_stdout(io.StringIO()):
            return self.recorder(**options).step("section", "name", body)


class Steps(WithFolder):
    def test_a_command_is_ended_at_its_limit_with_what_it_started(self):
        mark = self.folder / "mark"
        outcome = steps.run(["bash", "-c", f"(sleep 2; touch {mark}) & echo before; sleep 60"], 0.5)
        self.assertTrue(outcome.timed_out)
        self.assertIn("before", outcome.output)
        steps.run(["sleep", "2.2"], 10)
        self.assertFalse(mark.exists())

    def test_what_became_of_a_step(self):
        def fails():
            raise steps.Failure("no", "tail of it")

        def breaks():
            raise KeyError("oops")

        self.assertEqual(self.step(lambda: ("fine", {"a": 1}))["status"], "passed")
        self.assertEqual(self.step(fails)["tail"], "tail of it")
        self.assertEqual(self.step(breaks)["status"], "failed")
        self.assertEqual(self.step(fails, dry_run=True)["status"], "not run")
        self.assertEqual(self.step(lambda: self.recorder(budget=1).command(["true"], 60))["note"], "out of time")
        self.assertEqual(json.loads((self.folder / "report.json").read_text())["steps"][0]["note"], "out of time")

    def test_a_section_leaves_time_to_others(self):
        recorder = self.recorder(budget=100)
        with recorder.share(0.4):
            self.assertAlmostEqual(recorder.left(60), 40, delta=1)
            self.assertEqual(recorder.left(10), 10)
        self.assertEqual(recorder.left(60), 60)
        with recorder.share(0.01), self.assertRaises(steps.OutOfTime):
            recorder.left(60)
        endless = self.recorder()
        with endless.share(0.4):
            self.assertEqual(endless.left(600), 600)

    def test_a_failing_command_is_a_failure(self):
        record = self.step(lambda: self.recorder().command(["bash", "-c", "echo why; exit 3"], 10))
        self.assertEqual((record["status"], record["note"], record["tail"]), ("failed", "bash ended with status 3", "why\n"))


class Programs(WithFolder):
    def run_cases(self, cases, limit=20):
        program = self.folder / "program"
        program.write_text(GTEST.replace("{python}", sys.executable))
        program.chmod(0o755)
        os.environ["CASES"] = cases
        entry = {"name": "program", "program": str(program), "filter": "*"}
        try:
            _, data = gtests.run_program(self.recorder(), FakeMachine(), entry, limit, jobs=1)
            return None, data
        except steps.Failure as failure:
            return str(failure), failure.data

    def test_all_pass(self):
        failure, data = self.run_cases("a=pass,b=skip,c=pass")
        self.assertIsNone(failure)
        self.assertEqual(data["results"], {"Suite.a": "passed", "Suite.b": "skipped", "Suite.c": "passed"})

    def test_a_crash_hides_nothing(self):
        failure, data = self.run_cases("a=pass,b=crash,c=fail,d=crash,e=pass")
        self.assertIn("2 of 5 passed, 3 failed", failure)
        self.assertEqual([data["results"][f"Suite.{name}"] for name in "abcde"],
                         ["passed", "crashed", "failed", "crashed", "passed"])
        self.assertIn("expected 1, found 2", data["failures"]["Suite.c"]["output"])

    def test_what_fails_only_in_company_is_told(self):
        failure, data = self.run_cases("a=pass,b=company")
        self.assertIn("1 of 1 pass when run alone", failure)
        self.assertEqual(data["failures"]["Suite.b"]["alone"], "passed")

    def test_a_hang_ends_and_the_rest_runs(self):
        gtests.SILENCE, before = 1, gtests.SILENCE
        self.addCleanup(setattr, gtests, "SILENCE", before)
        _, data = self.run_cases("a=hang,b=pass")
        self.assertEqual(data["results"], {"Suite.a": "hung", "Suite.b": "passed"})

    def test_no_time_is_no_success(self):
        failure, data = self.run_cases("a=pass,b=hang,c=pass", limit=3)
        self.assertIn("2 had no time", failure)
        self.assertEqual(data["results"], {"Suite.a": "passed"})

    def test_a_budget_is_not_the_tests_fault(self):
        self.recorder, before = lambda: before(budget=6), self.recorder
        with self.assertRaises(steps.OutOfTime) as late:
            self.run_cases("a=pass,b=hang")
        self.assertEqual(late.exception.data["results"], {"Suite.a": "passed"})

    def test_skipped_tests_are_not_run(self):
        with self.assertRaises(steps.NotHere):
            self.run_cases("a=skip")


class Kernels(unittest.TestCase):
    def test_times_are_added_up_by_kernel(self):
        line = '"{}","1","p","gemm(float, int)","1","7","(1, 1, 1)","(1, 1, 1)","0","9.0","x","gpu__time_duration.sum","{}","{}"'
        head = ('"ID","Process ID","Process Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",'
                '"Section Name","Metric Name","Metric Unit","Metric Value"')
        once = line.replace("gemm", "init")
        text = "\n".join(["==PROF== hello", head, line.format(0, "ns", "1,500"), line.format(1, "us", "2.5"),
                          once.format(2, "ns", "9000")])
        note, data = speed.summed_kernels(text, 2, "lenet:64:float32")
        self.assertEqual([(one["kernel"], one["launches"], one["us"]) for one in data["kernels"]],
                         [("gemm(float, int)", 1.0, 2.0)])
        self.assertIn("1 kernels, 2 us a step", note)
        with self.assertRaises(steps.Failure):
            speed.summed_kernels("no table", 2, "x")


class Curves(WithFolder):
    def compare(self, losses, accuracy):
        fake = training.Training.__new__(training.Training)
        fake.size = type("Size", (), {"train_limit": 10})
        fake.runs = {"it": self.outcome([2.0, 1.0], 0.9)}
        fake.train = lambda *_: self.outcome(losses, accuracy)
        return fake.curve("dp", "single", [], "it")

    def outcome(self, losses, accuracy):
        return {"output": "", "losses": losses, "accuracy": accuracy, "steps": len(losses), "images_per_s": 1}

    def test_curves(self):
        self.compare([2.0, 1.00005], 0.904)
        for losses, accuracy in (([2.0, 1.0002], 0.9), ([2.0, 1.0], 0.894), ([2.0], 0.9), ([2.0, float("nan")], 0.9)):
            with self.subTest(losses=losses, accuracy=accuracy), self.assertRaises(steps.Failure):
                self.compare(losses, accuracy)


class TimeToAccuracy(WithFolder):
    def test_a_silent_hang_ends_at_its_limit(self):
        trainer = self.folder / "trainer"
        trainer.write_text("#!/bin/sh\necho 'epoch 1: test accuracy 0.5'\nexec sleep 30\n")
        trainer.chmod(0o755)
        fake = training.Training.__new__(training.Training)
        fake.size, fake.machine, fake.recorder = type("Size", (), {"train_limit": 0.5}), FakeMachine(), self.recorder()
        fake.trainer, fake.data = trainer, self.folder
        begin = time.monotonic()
        with self.assertRaisesRegex(steps.Failure, "not ended"):
            fake.time_to(0.99, 1, [])
        self.assertLess(time.monotonic() - begin, 20)


class PortableBits(unittest.TestCase):
    def compare(self, losses, sha256):
        fake = training.Training.__new__(training.Training)
        fake.size = type("Size", (), {"train_limit": 10})
        cpu = {"output": "", "losses": [2.0, 1.0], "steps": 2, "sha256": "ab"}
        asked = []

        def train(mode, options, limit):
            asked.append((mode, options))
            return cpu if mode == "cpu" else {**cpu, "losses": losses, "sha256": sha256}
        fake.train = train
        note, _ = fake.portable(["--model", "mlp"])
        return note, asked

    def test_every_loss_and_the_weights_must_be_equal(self):
        note, asked = self.compare([2.0, 1.0], "ab")
        self.assertIn("as on the CPU", note)
        self.assertNotIn("--lockstep-portable", asked[0][1])
        self.assertTrue(all("--lockstep-portable" in options for _, options in asked[1:]))
        with self.assertRaisesRegex(steps.Failure, "step 2: 1.0000001"):
            self.compare([2.0, 1.0000001], "ab")
        with self.assertRaisesRegex(steps.Failure, "weights cd.*all losses are equal"):
            self.compare([2.0, 1.0], "cd")


class Reports(WithFolder):
    def result(self, *made):
        return {"device": "Some GPU", "date": "2030-01-02", "commit": "abc", "build": "b",
                "steps": [{"section": section, "name": name, "status": status, "note": "a|b", "seconds": 1.0, "tail": "why",
                           "data": data} for section, name, status, data in made]}

    def test_later_runs_complete_earlier_ones(self):
        first = self.result(("tests", "a", "failed", None), ("tests", "b", "passed", None), ("speed", "c", "not run", None))
        second = self.result(("tests", "a", "passed", None), ("tests", "b", "not run", None), ("speed", "c", "failed", None))
        merged = report.merge([first, second])
        self.assertEqual([step["status"] for step in merged["steps"]], ["passed", "passed", "failed"])
        with self.assertRaises(ValueError):
            report.merge([first, {**second, "commit": "another"}])

    def test_the_text_tells_of_failures(self):
        path = report.write(self.result(("tests", "a", "failed", None)), self.folder)
        text = pathlib.Path(path).read_text()
        self.assertTrue(path.endswith("gpu-some-gpu-2030-01-02.md"))
        for part in ("0 checks passed, 1 failed", "| **FAILED** |", "a\\|b", "## What failed", "why"):
            self.assertIn(part, text)

    def test_the_status_of_a_row(self):
        results = {"Ops/CudaPool.X/max_even": "passed", "Ops/CudaPool.X/max_odd": "failed", "Ops/CudaLoss.X/mse_loss_a": "passed",
                   "Ops/CudaNorm.X/batch_norm": "skipped"}
        one = self.result(("tests", "test_cuda", "failed", {"results": results}), ("speed", "DDP x", "passed", None))
        said = {op: gpu_status.verdict(one, gpu_status.OPS[op], []) for op in ("pool2d", "loss", "batch_norm")}
        self.assertTrue(said["pool2d"].endswith("**1 of 2 tests failed**"))
        self.assertTrue(said["loss"].endswith("abc: 1 tests passed"))
        self.assertIsNone(said["batch_norm"])
        self.assertTrue(gpu_status.verdict(one, [], ["speed: DDP *"]).endswith("1 checks passed"))


if __name__ == "__main__":
    unittest.main()
