"""Throughput beside PyTorch in the same run, and DDP where there are several GPUs."""

import csv
import json
import re
import sys

import steps
from steps import Failure, NotHere

# model, batch, type: (least ratio to a peer)
BARS = {("lenet", 64, "float32"): {"PyTorch eager": 5.0, "PyTorch graphs": 1.2},
        ("cnn", 256, "bf16"): {"PyTorch eager": 1.2, "PyTorch compile": 1.2, "PyTorch graphs": 1.2}}


DDP_BAR = 1.0  # a step of two GPUs, at most so many times PyTorch's


def throughput(recorder, machine, size, folder, rows):
    program = machine.program("cuda_throughput")
    if not program:
        raise NotHere("built without LOCKSTEP_BUILD_BENCH")
    folder.mkdir(parents=True, exist_ok=True)
    result, table = folder / "throughput.json", folder / "throughput.md"
    for file in (result, table):
        file.unlink(missing_ok=True)
    limit = recorder.left(size.speed_limit)
    command = [machine.python, machine.root / "bench/run_cuda_throughput.py", "--program", program, "--python",
               machine.python, "--rows", ",".join(rows), "--json", result, "--markdown", table, "--limit",
               f"{limit - 10:.0f}", *size.speed]
    outcome = steps.run(command, limit, machine.environment())
    if not result.exists():
        raise Failure(f"no row was measured; the benchmark {outcome.why()}", outcome.output)
    data = json.loads(result.read_text())
    data["markdown"] = table.read_text() if table.exists() else ""
    short = []
    for row in data["rows"]:
        for name, bar in BARS.get((row["model"], row["batch"], row["dtype"]), {}).items():
            ratio = row["ratios"].get(name)
            if ratio and not ratio["median"] >= bar:
                short.append(f"{row['model']} {row['batch']} {row['dtype']}: {ratio['median']:.2f} times {name}, aim {bar}")
        if row["failed"]:
            short += [f"{name}: {why.splitlines()[0][:150]}" for name, why in row["failed"].items()
                      if name.startswith("lockstep")]
    note = "; ".join(f"{row['model']} {row['batch']} {row['dtype']}: "
                     f"{row['contestants'].get('lockstep', {}).get('images_per_s', 0):,.0f} images/s"
                     + "".join(f", {ratio['median']:.2f} x {name.removeprefix('PyTorch ')}"
                               for name, ratio in row["ratios"].items()) for row in data["rows"])
    if short and not machine.emulated or outcome.timed_out or not outcome.ok:
        failure = Failure(note + (" | " + "; ".join(short) if short else ""), outcome.output)
        failure.data = data
        raise failure
    return note, data


def kernels(recorder, machine, row):
    """How long each kernel of a step takes, from Nsight Compute; a step without a graph, whose kernels it sees one by
    one. Its clocks are as they are, so that times add up to those of the other checks."""
    program = machine.program("cuda_throughput")
    if not program:
        raise NotHere("built without LOCKSTEP_BUILD_BENCH")
    if not steps.run(["ncu", "--version"], 30).ok:
        raise NotHere("ncu is not available")
    model, batch, dtype = row.split(":")
    count = 10
    setup = {"setup": "a", "model": model, "batch": int(batch), "dtype": dtype, "graph": False, "warmup": count,
             "images": 4096}
    output = recorder.command(["bash", "-c", 'printf "%s\\n" "$0" | ncu --csv --clock-control none --metrics '
                               'gpu__time_duration.sum "$1"', json.dumps(setup), program], 240, machine.environment())
    return summed_kernels(output, count, row)


def summed_kernels(output, count, row):
    """From ncu's table: by kernel, launches and microseconds a step; what runs less than once a step is set-up."""
    lines = output.splitlines()
    head = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), None)
    if head is None:
        raise Failure("ncu gave no table", output)
    found = {}
    for entry in csv.DictReader(lines[head:]):
        try:
            value = float(entry["Metric Value"].replace(",", ""))
        except (KeyError, TypeError, ValueError):
            continue
        scale = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3}.get(entry["Metric Unit"])
        if scale is None:
            raise Failure(f"ncu counts in {entry['Metric Unit']}", output)
        found.setdefault(entry["Kernel Name"], []).append(scale * value)
    rows = [{"kernel": name, "launches": len(times) / count, "us": sum(times) / count}
            for name, times in found.items() if len(times) >= count]
    rows.sort(key=lambda one: -one["us"])
    if not rows:
        raise Failure("ncu saw no kernel in every step", output)
    table = ["| kernel | launches a step | us a step |", "|---|---|---|"]
    table += [f"| `{one['kernel'][:120].replace('|', ' ')}` | {one['launches']:.1f} | {one['us']:.1f} |" for one in rows]
    total = sum(one["us"] for one in rows)
    return (f"{sum(one['launches'] for one in rows):.0f} kernels, {total:.0f} us a step; the longest {rows[0]['us']:.1f} us",
            {"row": row, "kernels": rows, "us": total, "table": "\n".join(table)})


def ddp(recorder, machine, size):
    """The timeline, and where the gradients lie. With one GPU its ranks share it, and its times mean nothing."""
    from training import ON_ONE_GPU, SHARED_GPU

    program, launcher = machine.program("cuda_ddp"), machine.program("lockstep_run")
    if not program or not launcher:
        raise NotHere("built without LOCKSTEP_BUILD_BENCH")
    own = machine.devices() >= 2
    shared = [] if own else ["bash", "-c", ON_ONE_GPU]
    output = recorder.command([launcher, "--nproc-per-node", "2", "--", *shared, program, *size.ddp], 300,
                              machine.environment(**({} if own else SHARED_GPU)))
    found = re.search(r"^(?:\[0\] )?(\{.*\})$", output, re.M)
    if not found:
        raise Failure("cuda_ddp printed no result", output)
    data = json.loads(found[1])
    data["ranks_share_a_gpu"] = not own
    timeline = data["timeline"]
    early = sum(1 for bucket in timeline if bucket["begun_ms"] < 0)
    note = (f"{data['buckets']} buckets, {early} all-reduces begun before backward's end, the first "
            f"{-timeline[0]['begun_ms']:.2f} ms before; gradients in {data['pieces_of_gradients']} pieces of memory; "
            + ", ".join(f"{name} {ms['median']:.2f} ms" for name, ms in data["ms"].items()))
    if data["pieces_of_gradients"] != data["buckets"] or (data["buckets"] > 1 and early == 0) or data["graph_obstacle"]:
        failure = Failure(note + (f"; no graph: {data['graph_obstacle']}" if data["graph_obstacle"] else ""), output)
        failure.data = data
        raise failure
    if own:
        peer = steps.run([machine.python, "-m", "torch.distributed.run", "--nproc-per-node", "2",
                          machine.root / "bench/torch_cuda_ddp.py"], recorder.left(300), machine.environment())
        lines = [line for line in peer.output.splitlines() if line.startswith("{")]
        data["peer"] = json.loads(lines[-1]) if peer.ok and lines else {"error": peer.output[-500:]}
        if peer.ok and lines:
            theirs, ours = data["peer"]["ms"]["ddp"]["median"], data["ms"]["ddp"]["median"]
            note += f"; PyTorch ddp {theirs:.2f} ms"
            if ours > DDP_BAR * theirs:
                failure = Failure(f"{note}: {ours / theirs:.2f} times PyTorch's, aim {DDP_BAR}", output)
                failure.data = data
                raise failure
    return note, data


def check_first(recorder, machine, size, folder):
    recorder.step("speed", "throughput, the rows with an aim",
                  lambda: throughput(recorder, machine, size, folder, size.first_rows))


def check_kernels(recorder, machine, size, folder):
    for row in size.first_rows:
        recorder.step("kernels", row.replace(":", ", "), lambda row=row: kernels(recorder, machine, row))


def check_rest(recorder, machine, size, folder):
    recorder.step("speed", "DDP of a 16.8-million-parameter net, 2 ranks", lambda: ddp(recorder, machine, size))
    if size.other_rows:
        recorder.step("speed", "throughput, the other rows",
                      lambda: throughput(recorder, machine, size, folder, size.other_rows))


if __name__ == "__main__":
    sys.exit("run scripts/gpu_check.sh")
