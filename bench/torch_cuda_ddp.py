#!/usr/bin/env python3
"""The peer of bench/cuda_ddp in PyTorch: milliseconds a step of the same net with DistributedDataParallel and alone.

    torchrun --nproc-per-node 2 bench/torch_cuda_ddp.py [STEPS A ROUND] [WIDTH] [BATCH OF A RANK]
"""

import json
import os
import statistics
import sys
import time

LAYERS, ROUNDS, WARM_UP = 4, 7, 10


def main():
    import torch
    import torch.distributed as dist

    steps, width, size = [int(value) for value in (sys.argv[1:] + ["20", "2048", "256"][len(sys.argv) - 1:])]
    if not torch.cuda.is_available():
        print("torch_cuda_ddp: PyTorch sees no CUDA device", file=sys.stderr)
        return 77
    torch.backends.cuda.matmul.allow_tf32 = False
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")

    def trainer(parallel):
        torch.manual_seed(1)
        layers = []
        for i in range(LAYERS):
            layers += [torch.nn.Linear(width, width), torch.nn.ReLU()] if i + 1 < LAYERS else [torch.nn.Linear(width, width)]
        net = torch.nn.Sequential(*layers).cuda()
        if parallel:
            net = torch.nn.parallel.DistributedDataParallel(net, device_ids=[rank], gradient_as_bucket_view=True)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, fused=True)

        def step():
            optimizer.zero_grad(set_to_none=not parallel)
            torch.nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        return step

    x = torch.randn(size, width, device="cuda")
    y = torch.randint(0, width, (size,), device="cuda")
    rows = {"alone": trainer(False), "ddp": trainer(True)}
    times = {name: [] for name in rows}
    for step in rows.values():
        for _ in range(WARM_UP):
            step()
    for _ in range(ROUNDS):
        for name, step in rows.items():
            dist.barrier()
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(steps):
                step()
            torch.cuda.synchronize()
            times[name].append(1e3 * (time.perf_counter() - start) / steps)
    if rank == 0:
        print(json.dumps({"library": f"PyTorch {torch.__version__}", "ranks": dist.get_world_size(),
                          "ms": {name: {"median": statistics.median(ms), "low": min(ms), "high": max(ms)}
                                 for name, ms in times.items()}}), flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
