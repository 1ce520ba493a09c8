"""Running one thing after another, each with a limit, and keeping what came of it."""

import contextlib
import json
import os
import signal
import subprocess
import time

TAIL = 3000  # characters of output that are kept

PASSED, FAILED, SKIPPED, NOT_RUN = "passed", "failed", "skipped", "not run"


class Outcome:
    """What a command did."""

    def __init__(self, status, output, seconds, timed_out):
        self.status = status
        self.output = output
        self.seconds = seconds
        self.timed_out = timed_out

    @property
    def ok(self):
        return self.status == 0 and not self.timed_out

    def why(self):
        if self.timed_out:
            return f"had not ended after {self.seconds:.0f} s"
        if self.status < 0:
            return f"ended by signal {signal.Signals(-self.status).name}"
        return f"ended with status {self.status}"


def end_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def run(command, limit, environment=None):
    """Runs it with its own process group, which ends with it. Output and errors come together."""
    start = time.monotonic()
    try:
        process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, env=environment, start_new_session=True)
    except OSError as error:
        return Outcome(127, str(error), 0.0, False)
    timed_out = False
    try:
        output, _ = process.communicate(timeout=max(limit, 0.1))
    except subprocess.TimeoutExpired:
        timed_out = True
        end_group(process)
        output, _ = process.communicate()
    end_group(process)
    return Outcome(process.returncode, output.decode(errors="replace"), time.monotonic() - start, timed_out)


class OutOfTime(Exception):
    """`data`: what there was by then."""

    data = None


class NotHere(Exception):
    """This machine or build has not what the step needs."""


class Failure(Exception):
    """The step's check does not hold. `tail`: output that shows why."""

    def __init__(self, message, tail=""):
        super().__init__(message)
        self.tail = tail[-TAIL:]


class Recorder:
    """The steps of a run. Each is written down as soon as it has ended, so that a run that is cut off has told what it
    had found by then."""

    def __init__(self, path, about, budget, dry_run):
        self.path = path
        self.about = about
        self.dry_run = dry_run
        self.budget = budget
        self.end = time.monotonic() + budget if budget else None
        self.section_end = None
        self.steps = []

    def left(self, limit):
        """Seconds that something which may take `limit` has."""
        ends = [end for end in (self.end, self.section_end) if end is not None]
        if not ends:
            return limit
        left = min(ends) - time.monotonic()
        if left < 5:
            raise OutOfTime()
        return min(limit, left)

    @contextlib.contextmanager
    def share(self, part):
        """Within it, no more than this part of the budget is used, so that what comes later has time too."""
        self.section_end = time.monotonic() + part * self.budget if self.budget else None
        try:
            yield
        finally:
            self.section_end = None

    def command(self, command, limit, environment=None):
        """Its output; Failure if it fails, OutOfTime if it was the budget that ended it."""
        outcome = run(command, self.left(limit), environment)
        if outcome.timed_out and outcome.seconds < limit - 1:
            raise OutOfTime()
        if not outcome.ok:
            raise Failure(f"{os.path.basename(str(command[0]))} {outcome.why()}", outcome.output)
        return outcome.output

    def step(self, section, name, body, device=True):
        """Runs body(), which gives (note, data) or a note alone, or throws. With `device`, only where there is one."""
        record = {"section": section, "name": name, "status": NOT_RUN, "note": "", "seconds": 0.0}
        start = time.monotonic()
        try:
            if device and self.dry_run:
                raise NotHere("no device: dry run")
            result = body()
            note, data = result if isinstance(result, tuple) else (result, None)
            record.update(status=PASSED, note=note or "")
            if data is not None:
                record["data"] = data
        except NotHere as why:
            record.update(note=str(why))
        except OutOfTime as late:
            record.update(note=str(late) or "out of time")
            if late.data is not None:
                record["data"] = late.data
        except Failure as failure:
            record.update(status=FAILED, note=str(failure), tail=failure.tail)
            if getattr(failure, "data", None) is not None:
                record["data"] = failure.data
        except Exception as error:  # a fault of these scripts must not hide what the other steps find
            record.update(status=FAILED, note=f"the check itself failed: {type(error).__name__}: {error}")
        record["seconds"] = round(time.monotonic() - start, 2)
        self.steps.append(record)
        print(f"{record['status']:>8}  {section}: {name}  ({record['seconds']:.1f} s)  {record['note']}", flush=True)
        if record.get("tail"):
            print("          " + record["tail"].strip().replace("\n", "\n          ")[-1500:], flush=True)
        self.write()
        return record

    def result(self):
        return {**self.about, "steps": self.steps}

    def write(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.result(), indent=1) + "\n")
