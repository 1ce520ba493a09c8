#!/usr/bin/env python3
"""The cost of one small operation in lockstep beside libtorch, in one run.

x = x + 1 on 16 elements, 1,000 in a chain, with gradients. Both programs take turns; a row gives the medians of the
turns. The peer is tuned as in run_train_throughput.py.

    bench/run_op_overhead.py --build build --rounds 7
"""

import argparse
import json
import statistics
import subprocess
from pathlib import Path

from run_train_throughput import own_environment, peer_environment


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=Path("build"), help="build folder, made with LOCKSTEP_BUILD_BENCH=ON")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    programs = [(arguments.build / "bench/op_overhead", own_environment(1)),
                (arguments.build / "bench/op_overhead_libtorch", peer_environment(1))]
    turns = {}
    for _ in range(arguments.rounds):
        for path, environment in programs:
            if path.exists():
                output = subprocess.run([path], env=environment, check=True, capture_output=True, text=True).stdout
                result = json.loads(output)
                turns.setdefault(result["library"], []).append(result)
    print("| library | forward, us/op | backward, us/op |\n|---|---|---|")
    for library, results in turns.items():
        forward, backward = (statistics.median(r[key] for r in results) for key in ("forward_us", "backward_us"))
        print(f"| {library} | {forward:.3f} | {backward:.3f} |")


if __name__ == "__main__":
    main()
