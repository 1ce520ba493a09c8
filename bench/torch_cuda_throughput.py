#!/usr/bin/env python3
"""The peer of bench/cuda_throughput in PyTorch: the same nets, batches, data set, loss and optimizer; the same protocol.

Setups have another entry, "variant":
  eager                   operations as they come
  compile                 forward under torch.compile
  compile-max-autotune    the same with mode="max-autotune-no-cudagraphs"
  graphs                  the whole step (forward, backward, optimizer) captured once as a CUDA graph
  graphs-channels-last    and the images and convolutions in channels_last
All have the data set on the GPU, draw batches there and use the fused optimizers; cuDNN may try its algorithms
(benchmark=True). Types: float32, tf32 (the same with TF32 allowed), bf16 by torch.autocast. The nets are those of
bench/torch_train_throughput.py.
"""

import argparse
import json
import sys
import time

MEBIBYTE = 2**20
peers = None  # bench/torch_train_throughput.py, which needs PyTorch
IMAGES = 60000


class Contestant:
    def __init__(self, torch, setup, device):
        self.torch = torch
        self.device = device
        self.batch = setup["batch"]
        variant = setup["variant"]
        torch.manual_seed(1)
        count = setup.get("images", IMAGES)
        self.model = setup["model"]
        self.images, self.labels = self.samples(count)
        self.net = peers.make_model(self.model).to(device)
        self.dtype = setup.get("dtype", "float32")
        self.allow_tf32()
        self.memory_format = torch.contiguous_format
        if variant.endswith("channels-last"):
            self.memory_format = torch.channels_last
            self.net = self.net.to(memory_format=torch.channels_last)
        try:
            self.optimizer = self.make_optimizer(fused=True)
        except (RuntimeError, TypeError):  # the CPU of an older release
            self.optimizer = self.make_optimizer()
        self.forward = self.net
        if variant.startswith("compile"):
            mode = "max-autotune-no-cudagraphs" if variant == "compile-max-autotune" else None
            self.forward = torch.compile(self.net, mode=mode)
        self.order, self.place = None, count
        self.graph = None
        self.loss = None
        if variant.startswith("graphs"):
            self.capture()
        for _ in range(setup.get("warmup", 20)):
            self.step()
        self.synchronize()

    def samples(self, count):
        """Images and labels, or windows of tokens and what follows each."""
        torch, device = self.torch, self.device
        if self.model in peers.WINDOWS:
            tokens = torch.randint(peers.VOCABULARY, (count, peers.WINDOWS[self.model] + 1), device=device)
            return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        sizes = (3, 32, 32) if self.model in peers.COLOUR else (1, 28, 28)
        return torch.rand(count, *sizes, device=device) - 0.5, torch.randint(10, (count,), device=device)

    def make_optimizer(self, **options):
        if self.model in peers.ADAM:
            if self.device.type == "cuda":
                options["capturable"] = True
            return self.torch.optim.AdamW(self.net.parameters(), lr=3e-4, weight_decay=1e-2, **options)
        return self.torch.optim.SGD(self.net.parameters(), lr=0.01, momentum=0.9, **options)

    def allow_tf32(self):
        self.torch.backends.cuda.matmul.allow_tf32 = self.dtype == "tf32"
        self.torch.backends.cudnn.allow_tf32 = self.dtype == "tf32"

    def synchronize(self):
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def index(self):
        count = len(self.labels)
        if self.place + self.batch > count:
            self.order = self.torch.randperm(count, device=self.device)
            self.place = 0
        self.place += self.batch
        return self.order[self.place - self.batch:self.place]

    def loss_of(self, x, y):
        # A captured step must not keep the cast weights of the step before.
        with self.torch.autocast(self.device.type, dtype=self.torch.bfloat16, enabled=self.dtype == "bf16",
                                 cache_enabled=self.graph is None and not self.capturing):
            x = x.contiguous(memory_format=self.memory_format)
            return self.torch.nn.functional.cross_entropy(self.forward(x), y.flatten())

    capturing = False

    def plain_step(self, x, y):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss_of(x, y)
        loss.backward()
        self.optimizer.step()
        return loss

    def capture(self):
        torch = self.torch
        self.capturing = True
        self.x = self.images[:self.batch].clone()
        self.y = self.labels[:self.batch].clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(5):
                self.plain_step(self.x, self.y)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            self.loss = self.plain_step(self.x, self.y)
        self.graph = graph

    def step(self):
        index = self.index()
        if self.graph is None:
            self.loss = self.plain_step(self.images[index], self.labels[index])
            return
        self.torch.index_select(self.images, 0, index, out=self.x)
        self.torch.index_select(self.labels, 0, index, out=self.y)
        self.graph.replay()

    def run(self, steps):
        self.allow_tf32()
        self.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        self.synchronize()
        return {"steps": steps, "seconds": time.perf_counter() - start, "loss": float(self.loss.detach())}


def answer(torch, contestants, request, device):
    cuda = device.type == "cuda"
    if "setup" in request:
        if cuda:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        start = time.perf_counter()
        contestants[request["setup"]] = Contestant(torch, request, device)
        found = {"setup_seconds": time.perf_counter() - start}
        if cuda:
            found["peak_mib"] = (torch.cuda.max_memory_allocated() - before) / MEBIBYTE
        return found
    if "drop" in request:
        contestants.pop(request["drop"], None)
        if cuda:
            torch.cuda.empty_cache()
        return {}
    return contestants[request["run"]].run(request["steps"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="run there, without CUDA graphs: for trying this program out")
    arguments = parser.parse_args()
    global peers
    try:
        import torch
        import torch_train_throughput as peers
    except ImportError as error:
        print(f"torch_cuda_throughput: {error}", file=sys.stderr)
        return 77
    if not arguments.cpu and not torch.cuda.is_available():
        print("torch_cuda_throughput: PyTorch sees no CUDA device", file=sys.stderr)
        return 77
    device = torch.device("cpu" if arguments.cpu else "cuda")
    torch.backends.cudnn.benchmark = True
    print(json.dumps({"library": f"PyTorch {torch.__version__}",
                      "device": "cpu" if arguments.cpu else torch.cuda.get_device_name(0)}), flush=True)
    contestants = {}
    for line in sys.stdin:
        try:
            found = answer(torch, contestants, json.loads(line), device)
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"[:1000]}
        print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
