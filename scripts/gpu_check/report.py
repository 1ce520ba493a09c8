"""The report: what a run found, as Markdown, from what it wrote as JSON."""

import json
import re
import time
from pathlib import Path

from steps import FAILED, NOT_RUN, PASSED

MARK = {PASSED: "passed", FAILED: "**FAILED**", NOT_RUN: "not run"}


def file_name(about):
    device = re.sub(r"[^a-z0-9]+", "-", about["device"].lower()).strip("-")
    return f"gpu-{device}-{about['date']}"


def cell(text):
    return str(text).replace("|", "\\|").replace("\n", " ")


def markdown(result):
    counts = {status: sum(1 for step in result["steps"] if step["status"] == status) for status in MARK}
    lines = [f"# {result['device']}, {result['date']}", ""]
    if result.get("dry_run"):
        lines += ["A dry run: there was no device. It shows that the programs start and the scripts work, and nothing more.", ""]
    if result.get("emulated"):
        lines += ["A run on the emulated device, to try the scripts out. It shows nothing about a GPU.", ""]
    lines += [f"Written by `scripts/gpu_check.sh`. {counts[PASSED]} checks passed, {counts[FAILED]} failed, "
              f"{counts[NOT_RUN]} were not run.", "", "| | |", "|---|---|"]
    for name in ("commit", "build", "device", "devices", "driver", "runtime", "cublaslt", "cudnn", "nccl", "torch", "data"):
        if result.get(name) is not None:
            lines.append(f"| {name} | {cell(result[name])} |")
    lines += ["", "| section | check | result | seconds | |", "|---|---|---|---|---|"]
    for step in result["steps"]:
        lines.append(f"| {step['section']} | {cell(step['name'])} | {MARK[step['status']]} | {step['seconds']:.0f} | "
                     f"{cell(step['note'])} |")
    for step in result["steps"]:
        data = step.get("data") or {}
        if isinstance(data, dict) and data.get("markdown"):
            lines += ["", f"## {step['name'][0].upper()}{step['name'][1:]}", "",
                      "Ratio: lockstep's images/s over the peer's, median and range over the rounds. MiB: peak of the "
                      "device's memory for the net, its data set and the step.", "", data["markdown"].strip()]
        if isinstance(data, dict) and data.get("table"):
            lines += ["", f"## Kernels of a step: {step['name']}", "", data["table"]]
        if isinstance(data, dict) and data.get("timeline"):
            lines += ["", "## All-reduce beside backward", "",
                      "Milliseconds since backward's last gradient, from events on the device; negative is before it.", "",
                      "| bucket | MiB | begun | done |", "|---|---|---|---|"]
            for index, bucket in enumerate(data["timeline"]):
                lines.append(f"| {index} | {bucket['mib']:.2f} | {bucket['begun_ms']:.3f} | {bucket['done_ms']:.3f} |")
    failed = [step for step in result["steps"] if step["status"] == FAILED]
    if failed:
        lines += ["", "## What failed"]
    for step in failed:
        lines += ["", f"### {step['section']}: {step['name']}", "", cell(step["note"])]
        if step.get("tail"):
            lines += ["", "```", step["tail"].strip().replace("```", "'''"), "```"]
    return "\n".join(lines) + "\n"


def merge(results):
    """Later runs of the same device and commit replace what earlier ones say about a check, unless they did not run it."""
    merged = dict(results[0])
    steps = {}
    for result in results:
        if result["commit"] != merged["commit"] or result["device"] != merged["device"]:
            raise ValueError(f"{result['device']} at {result['commit']} is not {merged['device']} at {merged['commit']}")
        for step in result["steps"]:
            key = (step["section"], step["name"])
            if step["status"] != NOT_RUN or key not in steps:
                steps[key] = step
    merged["steps"] = list(steps.values())
    merged["dry_run"] = all(result.get("dry_run") for result in results)
    return merged


def write(result, folder):
    """Both files; returns the Markdown's path."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    name = folder / file_name(result)
    Path(f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    Path(f"{name}.md").write_text(markdown(result))
    return f"{name}.md"


def today():
    return time.strftime("%Y-%m-%d")
