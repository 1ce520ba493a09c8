#!/usr/bin/env python3
"""How long a step of a GPT takes on many GPUs, how much memory a rank needs, and which mesh to choose: a model of the
costs, for machines that are not at hand. docs/scale.md says what it assumes and how far it is off.

    bench/scale.py --check                      # beside the figures that Megatron-LM has published
    bench/scale.py --here FILE                  # beside what bench/mesh_steps has measured on two processes
    bench/scale.py --choose 18.4 --gpus 8,64,512,4096 --gpu h100
    bench/scale.py --mesh data=8,pipeline=8,tensor=8 --model 145.6 --batch 2304 --gpu a100

Units: seconds, bytes, floating-point operations; a multiply-add counts as two. Bandwidths are of one direction.
"""

import argparse
import json
import math
import statistics
import sys
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Machine:
    """A GPU, and what connects it with those of its node and of others."""

    name: str
    peak: float            # dense 16-bit operations a second
    product_share: float   # of the peak that large products reach
    memory: float          # bytes
    memory_rate: float     # bytes a second, as streaming kernels reach it
    node: int              # GPUs of a node
    node_rate: float       # bytes a second between GPUs of a node, as collectives reach it
    node_latency: float    # seconds of a step of a collective there
    net_rate: float        # bytes a second of a GPU to other nodes
    net_latency: float
    value_bytes: int = 2   # of an activation


# Peaks, memory and links are the vendor's; what of them is reached (80 to 85 % of memory and of links) is a usual figure.
# product_share of the A100 is fitted to one published row, that of the H100 an assumption: see docs/scale.md.
MACHINES = {
    "a100": Machine("A100 80 GB, 8 a node, one 200 Gbit/s link each", 312e12, 0.68, 80e9, 1.7e12, 8, 240e9, 5e-6, 21e9,
                    15e-6),
    "h100": Machine("H100 80 GB, 8 a node, one 400 Gbit/s link each", 989e12, 0.62, 80e9, 2.8e12, 8, 360e9, 5e-6, 42e9,
                    15e-6),
}


@dataclass(frozen=True)
class Model:
    """A GPT as in Narayanan et al. (2021): learned positions, an output layer tied to the embedding."""

    layers: int
    hidden: int
    heads: int
    vocabulary: int = 51200
    context: int = 2048

    @property
    def layer_parameters(self):
        return 12 * self.hidden**2 + 13 * self.hidden

    @property
    def parameters(self):
        return self.layers * self.layer_parameters + (self.vocabulary + self.context) * self.hidden

    def operations(self, sequences, recompute=True):
        """Of a step, as the paper counts them (its equation 3): 8/6 of the usual count with recomputation."""
        passes = 96 if recompute else 72
        return (passes * sequences * self.context * self.layers * self.hidden**2
                * (1 + self.context / (6 * self.hidden) + self.vocabulary / (16 * self.layers * self.hidden)))


@dataclass(frozen=True)
class Plan:
    """A mesh and how it is used."""

    data: int = 1
    pipeline: int = 1
    tensor: int = 1
    micro_batch: int = 1     # sequences
    chunks: int = 1          # of layers a stage: 1 is 1F1B, more is its interleaved form
    zero: int = 0            # 0 to 3: what is divided over the data dimension
    recompute: bool = True   # of activations, a layer at a time
    blocked: bool = True     # attention in blocks, whose scores never reach memory

    @property
    def gpus(self):
        return self.data * self.pipeline * self.tensor


@dataclass
class Prediction:
    step: float
    parts: dict              # seconds of the step, by cause
    memory: float            # bytes of the fullest rank
    share: float             # of the peak, by operations()
    bubble: float            # part of the pipeline's time in which a stage waits


def ring(size, ranks, rate, latency, passes):
    """An all-reduce (2 passes), or a reduce-scatter or all-gather (1), of `size` bytes."""
    if ranks == 1:
        return 0.0
    return passes * ((ranks - 1) / ranks * size / rate + (ranks - 1) * latency)


def all_reduce_over_data(size, plan, machine, passes=2):
    """Ranks of the data dimension lie plan.tensor apart, neighbours within a node where there is room."""
    within = max(1, min(plan.data, machine.node // plan.tensor))
    across = -(-plan.data // within)
    time = ring(size, within, machine.node_rate, machine.node_latency, passes)
    # Each GPU of the node then sends its part of the sum on its own link. Latencies of a tree, as libraries take it.
    if across > 1:
        time += passes * ((across - 1) / across * size / within / machine.net_rate
                          + math.log2(across) * machine.net_latency)
    return time


def layer_passes(model, plan, machine):
    """Seconds of one layer's forward and backward for a micro-batch on one rank: (products, elementwise, tensor)."""
    b, s, h, t = plan.micro_batch, model.context, model.hidden, plan.tensor
    rate = machine.peak * machine.product_share
    forward = (24 * b * s * h * h + 4 * b * s * s * h) / t / rate
    # Sixteen-bit values read and written by kernels that are fused as in Megatron-LM. Whole on each rank: two norms (2
    # each), bias, dropout and residual add twice (3.5). Divided: gelu with bias over four times the width (8), heads apart
    # and together again (8), and of the scores softmax with scale and mask (2) and dropout (2.5).
    scores = 0 if plan.blocked else model.heads * s * s
    moved = 2 * b * (11 * s * h + 16 * s * h / t + 4.5 * scores / t)
    elementwise = moved / machine.memory_rate
    inside = t <= machine.node
    reduce = ring(machine.value_bytes * b * s * h, t, machine.node_rate if inside else machine.net_rate,
                  machine.node_latency if inside else machine.net_latency, 2)
    passes = 4 if plan.recompute else 3  # a backward is two forwards
    # Two sums forward and two backward, of which recomputation repeats the former.
    return passes * forward, passes * elementwise, (6 if plan.recompute else 4) * reduce


def predict(model, machine, plan, sequences):
    """Of a step with so many sequences in all. Raises ValueError for a mesh that does not fit the model."""
    if sequences % (plan.data * plan.micro_batch):
        raise ValueError("the batch does not divide into micro-batches")
    micro_batches = sequences // (plan.data * plan.micro_batch)
    if model.layers % (plan.pipeline * plan.chunks) or model.heads % plan.tensor:
        raise ValueError("layers or heads do not divide")
    if plan.chunks > 1 and micro_batches % plan.pipeline:
        raise ValueError("interleaved schedules need a multiple of the stages as micro-batches")
    b, s, h = plan.micro_batch, model.context, model.hidden
    layers = model.layers // plan.pipeline
    products, elementwise, tensor = (layers * part for part in layer_passes(model, plan, machine))
    # The output layer is on the last stage, which all others wait for.
    products += 6 * b * s * h * model.vocabulary / plan.tensor / (machine.peak * machine.product_share)
    # Between stages: each rank of the tensor dimension sends its part, and the other side gathers within the node. A
    # stage sends while it computes the next micro-batch, but for the start of each message.
    sent = 0.0
    if plan.pipeline > 1:
        inside = plan.tensor * plan.pipeline <= machine.node
        link = machine.node_rate if inside else machine.net_rate
        message = machine.value_bytes * b * s * h
        latency = machine.node_latency if machine.node == plan.gpus else machine.net_latency
        sent = 2 * plan.chunks * (message / plan.tensor / link + latency)
        sent += 2 * plan.chunks * ring(message, plan.tensor, machine.node_rate, machine.node_latency, 1)
    one = products + elementwise + tensor + sent
    waiting = (plan.pipeline - 1) / plan.chunks * one
    parameters = layers * model.layer_parameters / plan.tensor
    parameters += (model.vocabulary + s) * h / plan.tensor
    # Gradients in float32, after the last backward; ZeRO-3 gathers 16-bit parameters twice a step besides. It is taken to
    # be hidden behind the products as far as these last.
    gradients = all_reduce_over_data(4 * parameters, plan, machine)
    gathered = 2 * all_reduce_over_data(2 * parameters, plan, machine, 1) if plan.zero == 3 else 0.0
    gathered = max(0.0, gathered * micro_batches - 0.5 * micro_batches * products)
    updated = parameters / (plan.data if plan.zero else 1)
    optimizer = 34 * updated / machine.memory_rate  # weights, two moments, gradient: read and written
    parts = {
        "products": micro_batches * products, "elementwise": micro_batches * elementwise, "tensor": micro_batches * tensor,
        "stages": micro_batches * sent, "bubble": waiting, "data": gradients + gathered, "optimizer": optimizer,
    }
    step = sum(parts.values())
    # 16-bit weights and float32 gradients, float32 weights and two moments.
    state = parameters * (2 / (plan.data if plan.zero == 3 else 1) + 4 / (plan.data if plan.zero >= 2 else 1)
                          + 12 / (plan.data if plan.zero >= 1 else 1))
    scores = 0 if plan.blocked else 5 * model.heads * s / h
    whole = b * s * h * ((24 + scores) / plan.tensor + 10)  # Korthikanti et al. (2022), of a layer
    held = min(micro_batches, plan.pipeline) * (1 + (plan.pipeline - 1) / (plan.pipeline * plan.chunks)
                                                if plan.chunks > 1 else 1)
    activations = held * layers * 2 * b * s * h + whole if plan.recompute else held * layers * whole
    logits = 4 * 2 * b * s * model.vocabulary / plan.tensor
    share = model.operations(sequences, plan.recompute) / step / plan.gpus / machine.peak
    return Prediction(step, parts, state + activations + logits, share,
                      waiting / (waiting + micro_batches * one))


# Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM" (2021), table 1:
# billions of parameters, heads, hidden width, layers, tensor, pipeline, GPUs, sequences a step, TFLOP/s of a GPU.
MEGATRON = [
    (1.7, 24, 2304, 24, 1, 1, 32, 512, 137), (3.6, 32, 3072, 30, 2, 1, 64, 512, 138),
    (7.5, 32, 4096, 36, 4, 1, 128, 512, 142), (18.4, 48, 6144, 40, 8, 1, 256, 1024, 135),
    (39.1, 64, 8192, 48, 8, 2, 512, 1536, 138), (76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140),
    (145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148), (310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155),
    (529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163), (1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 163),
]
MODELS = {f"{billions:g}": Model(layers, hidden, heads)
          for billions, heads, hidden, layers, *_ in MEGATRON}


def best_plan(model, machine, gpus, sequences, room=0.9):
    """The fastest mesh that fits into `room` of the memory, or None."""
    best = None
    powers = [1 << i for i in range(13)]
    for tensor in (t for t in powers if t <= min(machine.node, model.heads)):
        for pipeline in (p for p in range(1, model.layers + 1) if model.layers % p == 0):
            if gpus % (tensor * pipeline):
                continue
            data = gpus // (tensor * pipeline)
            for micro_batch in (1, 2, 4, 8):
                for chunks in (1, 2, 4) if pipeline > 1 else (1,):
                    for recompute in (False, True):
                        for zero in (0, 1) if pipeline > 1 else (0, 1, 2, 3):
                            plan = Plan(data, pipeline, tensor, micro_batch, chunks, zero, recompute)
                            try:
                                found = predict(model, machine, plan, sequences)
                            except ValueError:
                                continue
                            if found.memory > room * machine.memory:
                                continue
                            if best is None or found.step < best[1].step:
                                best = (plan, found)
    return best


def published():
    """Rows of table 1 beside the prediction: (billions, GPUs, mesh, published, predicted) in TFLOP/s of a GPU."""
    machine = MACHINES["a100"]
    rows = []
    for billions, heads, hidden, layers, tensor, pipeline, gpus, sequences, measured in MEGATRON:
        model = Model(layers, hidden, heads)
        data = gpus // (tensor * pipeline)
        # The table does not say which micro-batches and chunks were taken: the fastest that fit.
        fastest = None
        for micro_batch in (1, 2, 4, 8):
            for chunks in (1, 2, 3, 4) if pipeline > 1 else (1,):
                try:
                    found = predict(model, machine, Plan(data, pipeline, tensor, micro_batch, chunks, blocked=False), sequences)
                except ValueError:
                    continue
                if found.memory <= 0.95 * machine.memory and (fastest is None or found.step < fastest.step):
                    fastest = found
        if fastest is None:
            sys.exit(f"{billions} billion parameters do not fit: the model of memory is wrong")
        predicted = fastest.share * machine.peak * 1e-12
        rows.append((billions, gpus, f"{data} x {pipeline} x {tensor}", measured, predicted))
    return rows


def print_check():
    rows = published()
    print("| parameters, billions | GPUs | data x pipeline x tensor | published, TFLOP/s a GPU | predicted | predicted / published |")
    print("|---|---|---|---|---|---|")
    for billions, gpus, mesh, measured, predicted in rows:
        print(f"| {billions:g} | {gpus} | {mesh} | {measured} | {predicted:.0f} | {predicted / measured:.2f} |")
    off = [abs(predicted / measured - 1) for *_, measured, predicted in rows]
    print(f"\noff by {100 * statistics.mean(off):.0f} % on average, {100 * max(off):.0f} % at most")


# The divisions that bench/mesh_steps measures on two processes.
HERE = {"data": Plan(data=2, recompute=False), "pipeline": Plan(pipeline=2, recompute=False),
        "tensor": Plan(tensor=2, recompute=False)}


def here(measured):
    """What bench/mesh_steps has measured beside the prediction: (division, measured, predicted) in seconds. The machine is
    made of the step of one process, which says what a core computes, and of two all-reduces."""
    model = Model(measured["layers"], measured["hidden"], measured["heads"], measured["vocabulary"], measured["context"])
    latency = measured["small"] / 2
    rate = measured["large_bytes"] / max(measured["large"] - measured["small"], 1e-9)
    machine = Machine("here", 1e9, 1.0, 1e30, 1e30, 2, rate, latency, rate, latency, value_bytes=4)
    sequences = measured["micro_batch"] * measured["micro_batches"]
    alone = Plan(micro_batch=measured["micro_batch"], recompute=False)
    machine = replace(machine, peak=machine.peak * predict(model, machine, alone, sequences).step / measured["alone"])
    return [(name, measured[name],
             predict(model, machine, replace(plan, micro_batch=measured["micro_batch"]), sequences).step)
            for name, plan in HERE.items()]


def print_here(path):
    with open(path) as file:
        measured = json.load(file)
    print(f"alone {1e3 * measured['alone']:.0f} ms; all-reduce of {measured['large_bytes']} bytes "
          f"{1e3 * measured['large']:.2f} ms, of 64 {1e6 * measured['small']:.0f} us\n")
    print("| division over two processes | measured, ms | predicted, ms | predicted / measured |\n|---|---|---|---|")
    for name, took, predicted in here(measured):
        print(f"| {name} | {1e3 * took:.0f} | {1e3 * predicted:.0f} | {predicted / took:.2f} |")


def print_choice(arguments, machine):
    print("| GPUs | data x pipeline x tensor | micro-batch | chunks | ZeRO | recomputed | step, s | share of peak | bubble | "
          "memory, GB |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for gpus in (int(g) for g in arguments.gpus.split(",")):
        best = best_plan(MODELS[arguments.choose], machine, gpus, arguments.batch)
        if best is None:
            print(f"| {gpus} | does not fit | | | | | | | | |")
            continue
        plan, found = best
        print(f"| {gpus} | {plan.data} x {plan.pipeline} x {plan.tensor} | {plan.micro_batch} | {plan.chunks} | {plan.zero} | "
              f"{'yes' if plan.recompute else 'no'} | {found.step:.2f} | {100 * found.share:.0f} % | {100 * found.bubble:.0f} % | "
              f"{found.memory * 1e-9:.0f} |")


def parse_mesh(text):
    sizes = {}
    for part in text.split(","):
        name, _, size = part.partition("=")
        if name not in ("data", "pipeline", "tensor") or not size.isdigit() or int(size) < 1:
            raise argparse.ArgumentTypeError(f"'{part}': expected data=N, pipeline=N or tensor=N")
        sizes[name] = int(size)
    return sizes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="beside published figures")
    parser.add_argument("--here", metavar="FILE", help="beside what bench/mesh_steps has written")
    parser.add_argument("--choose", metavar="BILLIONS", choices=MODELS, help="the fastest mesh for a model")
    parser.add_argument("--gpus", default="8,32,128,512,1024,4096")
    parser.add_argument("--batch", type=int, default=1024, help="sequences a step")
    parser.add_argument("--gpu", choices=MACHINES, default="h100")
    parser.add_argument("--mesh", type=parse_mesh, help="predict one: data=8,pipeline=8,tensor=8")
    parser.add_argument("--model", metavar="BILLIONS", choices=MODELS, default="18.4")
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--chunks", type=int, default=1)
    parser.add_argument("--zero", type=int, choices=range(4), default=0)
    parser.add_argument("--no-recompute", action="store_true")
    arguments = parser.parse_args()
    machine = MACHINES[arguments.gpu]
    if arguments.check:
        print_check()
    elif arguments.here:
        print_here(arguments.here)
    elif arguments.choose:
        print_choice(arguments, machine)
    elif arguments.mesh:
        plan = replace(Plan(**arguments.mesh), micro_batch=arguments.micro_batch, chunks=arguments.chunks,
                       zero=arguments.zero, recompute=not arguments.no_recompute)
        try:
            found = predict(MODELS[arguments.model], machine, plan, arguments.batch)
        except ValueError as error:
            sys.exit(f"scale.py: {error}")
        print(f"{found.step:.2f} s a step, {100 * found.share:.0f} % of the peak, {found.memory * 1e-9:.1f} GB a rank")
        for name, seconds in found.parts.items():
            print(f"  {name:12} {seconds:8.3f} s  {100 * seconds / found.step:3.0f} %")
    else:
        parser.error("say --check, --here, --choose or --mesh")


if __name__ == "__main__":
    main()
