#!/usr/bin/env python3
"""Writes the tables of docs/validation/STATUS.md that say what has run on a GPU: by operation and by feature, from the
reports that scripts/gpu_check.sh has left beside it (gpu-*.json).

    scripts/gpu_status.py [--check] [--tests BUILD]

--check writes nothing, and fails if an operation of autograd/ops has no row, or the tables are not what the reports say.
--tests also fails if a row names tests that the programs of this build do not have.
"""

import argparse
import fnmatch
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "validation"
DOCUMENT = FOLDER / "STATUS.md"

CUDA, GOLDEN = "Ops/Cuda{}.*/{}", "Ops/Golden{}.*/{}"


def tests(*pairs):
    """Filters of tests: on the device against the CPU (CudaX) and against recorded PyTorch values (GoldenX)."""
    return [(GOLDEN if suite.startswith("Golden") else CUDA).format(suite.removeprefix("Golden"), name)
            for suite, names in pairs for name in names.split()]


# By operation, the tests that run it on the device. An operation that has no kernel of its own there names the tests of
# what it is made of.
OPS = {
    "batch_norm": tests(("Norm", "batch_norm*"), ("GoldenNorm", "batch_norm_*")),
    "binary": tests(("Binary", "*"), ("GoldenElementwise", "add* sub* mul* div* number_* maximum* minimum* pow_tensor eq ne "
                                                           "lt* le gt ge where*")),
    "cat": tests(("Shape", "cat_* stack split chunk"), ("GoldenShape", "cat* stack split* chunk")),
    "conv2d": tests(("Programs", "conv_transpose2d*"), ("Conv", "lenet* relu plain no_bias relu_no_bias padding stride dilation groups depthwise pointwise "
                             "one_output* uneven many_images no_images no_channels pool*"), ("GoldenProduct", "conv2d_*")) +
              ["Types/CudaDepthwise.*"],
    "copy": tests(("Shape", "casts clone integer_casts"), ("GoldenElementwise", "to_* contiguous clone copy_*")),
    "cross_entropy": tests(("Loss", "cross_entropy_*"), ("GoldenNorm", "cross_entropy_*")),
    "dropout": tests(("Index", "dropout*"), ("GoldenShape", "dropout*")) + ["CudaDropout.*"],
    "embedding": tests(("Index", "embedding*"), ("GoldenShape", "embedding*")),
    "gather": tests(("Index", "gather_* index_select_*"), ("GoldenShape", "gather_* index_select_*")),
    "group_norm": tests(("Softmax", "layer_norm*"), ("GoldenNorm", "layer_norm_*")),
    "index": tests(("Index", "index_select_*"), ("GoldenElementwise", "where*")),
    "interpolate": tests(("Programs", "interpolate_*")),
    "isfinite": tests(("Binary", "*"), ("Elementwise", "abs"), ("GoldenElementwise", "eq ne lt* abs*")),
    "layer_norm": tests(("Softmax", "layer_norm*"), ("GoldenNorm", "layer_norm_*"), ("Attention", "rms_norm*"),
                        ("GoldenAttention", "rms_norm*")),
    "linalg": ["OnCpu.*"],
    "linear": tests(("Product", "linear*"), ("GoldenProduct", "linear*")),
    "loss": tests(("Loss", "mse_loss_* bce_*"), ("GoldenNorm", "mse_* bce_*"), ("Programs", "losses")),
    "matmul": tests(("Product", "matmul* dot vector_matrix matrix_vector batched* tall matrix_batched broadcast_*"),
                    ("GoldenProduct", "matmul_*")),
    "nll_loss": tests(("Loss", "nll_loss_*"), ("GoldenNorm", "nll_loss_*")),
    "norm": tests(("Reduce", "*"), ("Elementwise", "sqrt"), ("GoldenElementwise", "sqrt where*"), ("GoldenReduce", "*")),
    "pool2d": tests(("Pool", "adaptive_* avg_* max_*"), ("GoldenProduct", "adaptive_avg_pool2d_* avg_pool2d* max_pool2d*")),
    "rearrange": tests(("Programs", "pad_* flip_roll")),
    "recurrent": tests(("Programs", "rnn_* lstm* gru")),
    "reduce": tests(("Reduce", "*"), ("GoldenReduce", "*"), ("Programs", "prod")),
    "scan": tests(("Programs", "cumsum cumprod")),
    "softmax": tests(("Softmax", "softmax_*"), ("GoldenNorm", "softmax_* log_softmax_*")),
    "multinomial": tests(("Attention", "multinomial")),
    "rotary": tests(("Attention", "rotary")),
    "scaled_dot_product_attention": tests(("Attention", "sdpa* packed_attention"), ("GoldenAttention", "sdpa*")),
    "topk": tests(("Attention", "topk"), ("GoldenAttention", "topk*")),
    "tril": tests(("Attention", "tril"), ("GoldenAttention", "tri*")),
    "unary": tests(("Elementwise", "*"), ("GoldenElementwise", "neg exp log sqrt rsqrt abs* tanh sigmoid* relu* leaky_relu* "
                                                               "gelu* silu pow_2 clamp*")),
    "view": tests(("Shape", "view flatten reshape_of_a_transpose expand permute transpose slice select squeeze"),
                  ("GoldenShape", "view reshape_copy flatten* expand* permute t transpose slice* narrow select brackets "
                                  "squeeze* unsqueeze")),
}

# By feature: filters of tests, and checks of the report as "section: name", both with wildcards.
FEATURES = [
    ("Random numbers: the CPU's", ["Counts/PhiloxCuda.*", "Ops/CudaShape.*/random"], []),
    ("Libraries opened at run time", ["DynamicLibrary.*", "All/CudaLibrary.*"], []),
    ("Streams, events, pinned memory, copies", ["CudaStream.*"], []),
    ("Matrix products by cuBLASLt", ["Gemm*", "Cases/GemmValues.*"], []),
    ("Fused optimizers, clipping, GradScaler", ["Cases/CudaOptimizer.*", "CudaGradients.*"], []),
    ("CUDA graphs of whole steps", ["CapturedStepTest.*", "CapturedScaledStep.*"], ["training: curve, lenet, single"]),
    ("Autocast", ["Policies/Autocast.*", "AutocastGuard.*", "Types/AutocastTraining.*"],
     ["training: mixed precision, bf16", "training: mixed precision, fp16"]),
    ("NCCL process group, a GPU a rank", ["Worlds/Nccl.*"], []),
    ("`mnist_train --mode single`: curves of all models", [], ["training: curve, *, single*"]),
    ("`mnist_train --mode dp`, replicas on one GPU", [], ["training: curve, lenet, dp 0,0"]),
    ("`mnist_train --mode dp`, several GPUs", [], ["training: curve, lenet, dp 0,1"]),
    ("`mnist_train --mode ddp`, NCCL, two ranks on one GPU", [], ["training: curve, lenet, ddp, 2 ranks on one GPU*"]),
    ("`mnist_train --mode ddp`, NCCL, several GPUs", [], ["training: curve, lenet, ddp, 2 GPUs"]),
    ("Lockstep mode: single, dp, ddp", [], ["training: lockstep, *"]),
    ("Lockstep mode with the CPU's bits (`--lockstep-portable`)", ["Portable.*"], ["training: the CPU's bits, *"]),
    ("99 % on MNIST", [], ["time to 99 %: *"]),
    ("Throughput beside PyTorch", [], ["speed: throughput, *"]),
    ("All-reduce beside backward, gradients in buckets", [], ["speed: DDP *"]),
    ("A full device; tensors of more than 2^31 elements", ["CudaLimits.*"], []),
    ("10,000 collectives in order", ["NcclManyOperations.*"], []),
    ("Graphs, each to the end of its process", [], ["graphs: *"]),
    ("Ranks stopped and killed while graphs are replayed", [], ["faults: SIG*"]),
    ("Memory of each rank on its own GPU alone", [], ["faults: memory *"]),
    ("Ten minutes of the same training, the same bits", [], ["soak: *"]),
    ("compute-sanitizer memcheck, of kernels, graphs and NCCL", [], ["sanitizer: memcheck*"]),
    ("compute-sanitizer initcheck and synccheck", [], ["sanitizer: initcheck", "sanitizer: synccheck"]),
    ("compute-sanitizer racecheck", [], ["sanitizer: racecheck"]),
]


def table_of(name):
    return f"<!-- {name}: scripts/gpu_status.py -->", f"<!-- end of {name} -->"


def reports():
    """Those of real runs, oldest first."""
    found = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("gpu-*.json"))]
    return sorted((report for report in found if not report.get("emulated") and not report.get("dry_run")),
                  key=lambda report: report["date"])


def results_of(report):
    """By test of all programs: "passed", "failed", ..."""
    results = {}
    for step in report["steps"]:
        if step["section"] == "tests":
            results.update((step.get("data") or {}).get("results", {}))
    return results


def verdict(report, filters, checks):
    """What the report says about them, or None if they were not run."""
    results = results_of(report)
    ran = [result for name, result in results.items()
           if any(fnmatch.fnmatchcase(name, pattern) for pattern in filters) and result != "skipped"]
    steps = [step["status"] for step in report["steps"] if step["status"] != "not run"
             and any(fnmatch.fnmatchcase(f"{step['section']}: {step['name']}", pattern) for pattern in checks)]
    if not ran and not steps:
        return None
    bad = sum(1 for result in ran if result != "passed") + sum(1 for status in steps if status != "passed")
    what = " and ".join([f"{len(ran)} tests"] * bool(ran) + [f"{len(steps)} checks"] * bool(steps))
    said = f"{what} passed" if not bad else f"**{bad} of {what} failed**"
    return f"{report['date']}, {report['device']}, {report['commit']}: {said}"


def on_gpu(filters, checks):
    for report in reversed(reports()):
        found = verdict(report, filters, checks)
        if found:
            return found
    return "not run"


def rows_of_ops():
    lines = ["| operation | tests on the device | on a GPU |", "|---|---|---|"]
    for op, filters in OPS.items():
        lines.append(f"| {op} | {' '.join(f'`{pattern}`' for pattern in shortened(filters))} | {on_gpu(filters, []) if filters else 'no kernel'} |")
    return lines


def shortened(filters):
    """As suites: the exact filters stand in this script."""
    return sorted({pattern.split(".")[0] + ".*" for pattern in filters})


def rows_of_features():
    lines = ["| feature | tests and checks | on a GPU |", "|---|---|---|"]
    for feature, filters, checks in FEATURES:
        named = "; ".join([f"`{pattern}`" for pattern in filters] + [check.replace("*", "\\*") for check in checks])
        lines.append(f"| {feature} | {named} | {on_gpu(filters, checks)} |")
    return lines


def replaced(text, name, lines):
    begin, end = table_of(name)
    if text.count(begin) != 1 or text.count(end) != 1:
        sys.exit(f"{DOCUMENT} lacks the marks '{begin}' and '{end}'")
    before, rest = text.split(begin)
    return before + begin + "\n" + "\n".join(lines) + "\n" + end + rest.split(end)[1]


def tests_of(build):
    """Names of all tests that run on the device in a build."""
    names = []
    for entry in json.loads((pathlib.Path(build) / "gpu_check/programs.json").read_text())["tests"]:
        if not pathlib.Path(entry["program"]).is_file():
            sys.exit(f"{entry['program']} has not been built")
        suite = ""
        for line in subprocess.check_output([entry["program"], "--gtest_list_tests", f"--gtest_filter={entry['filter']}"],
                                            text=True).splitlines():
            name = line.split("#")[0].strip()
            if not line.startswith(" "):
                suite = name
            else:
                names.append(suite + name)
    return names


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--tests", metavar="BUILD")
    arguments = parser.parse_args()
    problems = []
    # As autograd/ops/CMakeLists.txt finds them: folders with a header of their own name.
    ops = sorted(path.parent.name for path in ROOT.glob("autograd/ops/*/*.h") if path.stem == path.parent.name)
    problems += [f"the operation {op} has no row: add it to OPS in scripts/gpu_status.py" for op in ops if op not in OPS]
    problems += [f"there is no operation {op}: take its row out of OPS in scripts/gpu_status.py" for op in OPS if op not in ops]
    if arguments.tests:
        names = tests_of(arguments.tests)
        rows = [*OPS.items(), *((feature, filters) for feature, filters, _ in FEATURES)]
        problems += [f"{row}: no test is called {pattern}" for row, filters in rows for pattern in filters
                     if not fnmatch.filter(names, pattern)]
    text = DOCUMENT.read_text()
    made = replaced(replaced(text, "operations", rows_of_ops()), "features", rows_of_features())
    if arguments.check and made != text:
        problems.append(f"{DOCUMENT} is not what the reports say: run scripts/gpu_status.py")
    if problems:
        sys.exit("\n".join(problems))
    if not arguments.check:
        DOCUMENT.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
