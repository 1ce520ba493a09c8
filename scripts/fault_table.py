#!/usr/bin/env python3
"""Runs the fault tests and writes what they saw into the table of docs/faults.md.

    scripts/fault_table.py BUILD_FOLDER [--rows FILE] [--check]

--rows takes the rows of an earlier run, which LOCKSTEP_FAULT_ROWS=FILE made, instead of running the tests.
--check writes nothing, and fails if a fault has no row in the document, or the document a row without a fault.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "faults.md"
BEGIN, END = "<!-- rows: scripts/fault_table.py -->", "<!-- end of rows -->"

# Sections in the order of the document: title, and the tests whose names begin so.
SECTIONS = [
    ("A rank is killed or stopped", ("All/Killed.", "KilledOnGloo", "All/KilledInRendezvous", "Crashed", "Stopped",
                                     "All/StoreHolder", "Split.", "All/InAPart")),
    ("A rank calls something else, or nothing more", ("All/Calls", "CallsOnGloo", "Calls.")),
    ("The job does not come together", ("Start.",)),
    ("The store, the network, the disk", ("StoreServer", "All/Link", "Disk", "OutOfDescriptors")),
]


def run_tests(build):
    with tempfile.TemporaryDirectory() as folder:
        rows = pathlib.Path(folder) / "rows"
        program = pathlib.Path(build) / "tests" / "distributed" / "test_fault"
        result = subprocess.run([str(program)], env={**os.environ, "LOCKSTEP_FAULT_ROWS": str(rows)}, timeout=600)
        if result.returncode != 0:
            sys.exit("the fault tests have failed; the table is left as it was")
        return rows.read_text()


def numbers(ranks):
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def code(text):
    """As inline code in a cell of a table."""
    fence = "``" if "`" in text else "`"
    return fence + text.replace("|", "\\|") + fence


def last_words(survivor):
    """The sentence it ends with; without its own number, so that equal ones can be told together."""
    lines = [line.strip() for line in survivor["stderr"].strip().split("\n")]
    line = next((line for line in reversed(lines) if " failed: " in line and line.find("[Rank ") >= 0), lines[-1])
    line = line.removeprefix("fault_worker: ").removeprefix("what():").strip()
    line = re.sub(r"/tmp/lockstep-test-[0-9-]+/", "/small-disk/", line)
    own = survivor["rank"]
    return line.replace(f"[Rank {own}]", "[Rank N]").replace(f"rank {own} has come", "rank N has come")


def told(row):
    groups = {}
    for survivor in row["survivors"]:
        line = last_words(survivor)
        # What follows in the last parenthesis is how this rank noticed.
        key = re.sub(r" \([^;]*\)$", "", line) if line.startswith("[Rank N]") else line
        groups.setdefault(key, ([], line))[0].append(survivor["rank"])
    parts = []
    for ranks, line in groups.values():
        ends_well = all(s["status"] == 0 for s in row["survivors"])
        parts.append(f"{numbers(ranks)}: {code(line) if line else ''}{', and trains to its end' if ends_well else ''}")
    return "<br>".join(parts).replace(": , and", ": nothing, and")


def reporter(row):
    found = [str(s["rank"]) for s in row["survivors"] if "ranks has failed: " in s["stderr"]]
    return ", ".join(found) or "-"


def statuses(row):
    found = sorted({survivor["status"] for survivor in row["survivors"]})
    return ", ".join(map(str, found))


def table(rows):
    lines = []
    for title, prefixes in SECTIONS:
        lines += [f"## {title}", "", "| fault | what each survivor ends with | report by rank | status | last gone after |",
                  "|---|---|---|---|---|"]
        for prefix in prefixes:
            for row in rows:
                if row["test"].startswith(prefix):
                    lines.append(f"| {row['fault']} | {told(row)} | {reporter(row)} | {statuses(row)} | {row['seconds']:.2f} s |")
        lines.append("")
    return "\n".join(lines)


def faults_of(text):
    return {line.split(" | ")[0].removeprefix("| ") for line in text.split("\n") if line.startswith("| ")} - {"fault"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--rows")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text = pathlib.Path(options.rows).read_text() if options.rows else run_tests(options.build)
    rows = [json.loads(line) for line in text.splitlines()]
    homeless = [row["test"] for row in rows if not row["test"].startswith(tuple(p for _, ps in SECTIONS for p in ps))]
    if homeless:
        sys.exit(f"in no section: {homeless}")
    document = DOCUMENT.read_text()
    before, rest = document.split(BEGIN)
    old, after = rest.split(END)
    new = table(rows)
    if options.check:
        missing, extra = faults_of(new) - faults_of(old), faults_of(old) - faults_of(new)
        if missing or extra:
            sys.exit(f"{DOCUMENT} lacks {sorted(missing)} and has no tests for {sorted(extra)}")
        return
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n{new}\n{END}{after}")
    print(f"{DOCUMENT}: {len(rows)} rows")


if __name__ == "__main__":
    main()
