#!/usr/bin/env python3
"""gpt_train's recipe in PyTorch: the same model, data, optimizer and evaluations, eager or compiled.

usage: torch_gpt_train.py TEXT [--preset nano|small] [--lr LR] [--steps N] [--batch N] [--threads N] [--compile]
                         [--skip-evaluation]

Started by torchrun, the processes train under DistributedDataParallel (Gloo) and share the batch. Prints a line
"result: validation_loss=... seconds=... tokens_per_s=... median_tokens_per_s=...": the seconds of the training loop, and
the rate of the median step; whoever starts it measures the time of the process.
"""

import argparse
import math
import os
import statistics
import time

import torch
import torch.nn.functional as F

PRESETS = {"nano": (4, 4, 128, 64), "small": (6, 6, 384, 256)}


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.c_attn, self.c_proj = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.c_fc, self.mlp_proj = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = (z.view(n, t, self.heads, c // self.heads).transpose(1, 2) for z in self.c_attn(self.ln_1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(n, t, c))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(torch.nn.Module):
    def __init__(self, vocabulary, layers, heads, width, context):
        super().__init__()
        self.wte, self.wpe = torch.nn.Embedding(vocabulary, width), torch.nn.Embedding(context, width)
        self.h = torch.nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.ln_f = torch.nn.LayerNorm(width)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                torch.nn.init.normal_(p, 0, 0.02 / math.sqrt(2 * layers) if "proj" in name else 0.02)
            elif name.endswith("bias"):
                torch.nn.init.zeros_(p)

    def forward(self, x, y):
        h = self.wte(x) + self.wpe.weight[: x.shape[1]]
        for block in self.h:
            h = block(h)
        logits = F.linear(self.ln_f(h), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), y.reshape(-1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("text")
    parser.add_argument("--preset", choices=PRESETS, default="nano")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--skip-evaluation", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if options.batch % world:
        parser.error(f"a batch of {options.batch} cannot be shared by {world} processes")
    layers, heads, width, context = PRESETS[options.preset]
    with open(options.text, "rb") as file:
        text = file.read()
    number = {byte: i for i, byte in enumerate(sorted(set(text)))}
    tokens = torch.tensor([number[byte] for byte in text])
    cut = int(len(tokens) * 0.9)
    train, validation = tokens[:cut], tokens[cut:]
    net = Gpt(len(number), layers, heads, width, context)
    model = net
    if world > 1:
        torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(net)
        torch.manual_seed(1 + rank)
    if options.compile:
        model = torch.compile(model)
    matrices = [p for p in net.parameters() if p.dim() >= 2]
    vectors = [p for p in net.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices}, {"params": vectors, "weight_decay": 0.0}], lr=options.lr, betas=(0.9, 0.99), weight_decay=0.1, fused=True)

    def batch(source, starts):
        rows = torch.stack([source[s : s + context + 1] for s in starts])
        return rows[:, :-1], rows[:, 1:]

    @torch.no_grad()
    def evaluate():
        stride = (len(validation) - context) // 240
        starts = list(range(0, stride * 240, stride))
        return sum(model(*batch(validation, starts[i : i + 12])).item() for i in range(0, 240, 12)) / 20

    start, seconds, loss, times = time.monotonic(), 0.0, math.nan, []
    for step in range(options.steps):
        began = time.monotonic()
        warm = min(100, options.steps - 1)
        decay = (step - warm) / (options.steps - warm)
        lr = options.lr * (step / warm if step < warm else 0.1 + 0.45 * (1 + math.cos(math.pi * decay)))
        for group in optimizer.param_groups:
            group["lr"] = lr
        x, y = batch(train, torch.randint(len(train) - context, (options.batch // world,)).tolist())
        optimizer.zero_grad(set_to_none=True)
        model(x, y).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        times.append(time.monotonic() - began)
        if (step + 1) % 250 == 0 or step + 1 == options.steps:
            seconds += time.monotonic() - start
            if not options.skip_evaluation:
                loss = evaluate()
            start = time.monotonic()
    rate = options.steps * options.batch * context / seconds
    median = options.batch * context / statistics.median(times[2:] or times)
    if rank == 0:
        print(f"result: validation_loss={loss:.4f} seconds={seconds:.2f} tokens_per_s={rate:.0f} median_tokens_per_s={median:.0f}")
    if world > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
