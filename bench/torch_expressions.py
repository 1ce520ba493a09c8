"""The expressions of bench/expressions.cpp in PyTorch, eager or compiled. bench/run_expressions.py starts it."""

import argparse

import torch
import torch.nn.functional as F

import torch_rounds


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def layer_norm(x, weight, bias):
    centred = x - x.mean(-1, keepdim=True)
    return (centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + 1e-5) * weight + bias).sum()


def batch_norm_relu(x):
    centred = x - x.mean(0, keepdim=True)
    return torch.relu(centred / torch.sqrt((centred * centred).mean(0, keepdim=True) + 1e-5)).sum()


def rope(x, cosines, sines):
    a, b = x[..., :32], x[..., 32:]
    return torch.cat([a * cosines - b * sines, a * sines + b * cosines], 2).square().sum()


def softmax(x):
    powers = torch.exp(x - x.amax(1, keepdim=True))
    return (powers / powers.sum(1, keepdim=True)).square().sum()


def focal_loss(x, y):
    p = torch.sigmoid(x)
    loss = -(y * torch.log(p + 1e-6) + (1 - y) * torch.log(1 - p + 1e-6))
    return ((1 - (y * p + (1 - y) * (1 - p))) ** 2 * loss).mean()


def variational(mean, log_variance, noise):
    z = mean + torch.exp(0.5 * log_variance) * noise
    return (z * z).sum() - 0.5 * (1 + log_variance - mean * mean - torch.exp(log_variance)).sum()


def huber(x, y):
    distance = (x - y).abs()
    return torch.where(distance < 1, 0.5 * distance * distance, distance - 0.5).mean()


def charbonnier(x, y):
    difference = x - y
    return torch.sqrt(difference * difference + 1e-6).mean()


def leaf(*sizes):
    return torch.randn(*sizes, requires_grad=True)


EXPRESSIONS = {
    "gelu": (lambda: [leaf(2048, 768)], lambda x: gelu(x).sum()),
    "gelu_forward": (lambda: [torch.randn(2048, 768)], lambda x: gelu(x).sum()),
    "swiglu": (lambda: [leaf(2048, 1024), leaf(2048, 1024)], lambda a, b: (F.silu(a) * b).sum()),
    "rms_norm": (lambda: [leaf(2048, 768), leaf(768)],
                 lambda x, weight: (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * weight).sum()),
    "layer_norm": (lambda: [leaf(2048, 768), leaf(768), leaf(768)], layer_norm),
    "batch_norm_relu": (lambda: [leaf(1024, 1024)], batch_norm_relu),
    "rope": (lambda: [leaf(64, 256, 64), torch.randn(256, 32), torch.randn(256, 32)], rope),
    "softmax": (lambda: [leaf(512, 2000)], softmax),
    "masked_softmax": (lambda: [leaf(16, 256, 256), (1 - torch.ones(256, 256).tril()) * -1e9],
                       lambda x, mask: torch.softmax(x / 8 + mask, -1).square().sum()),
    "focal_loss": (lambda: [leaf(1000000), (torch.rand(1000000) > 0.5).float()], focal_loss),
    "variational": (lambda: [leaf(4096, 256), leaf(4096, 256), torch.randn(4096, 256)], variational),
    "huber": (lambda: [leaf(2000000), torch.randn(2000000)], huber),
    "charbonnier": (lambda: [leaf(8, 64, 64, 64), torch.randn(8, 64, 64, 64)], charbonnier),
}


def make_step(options):
    tensors, value = EXPRESSIONS[options.expression]
    tensors = tensors()
    run = torch.compile(value) if options.compile else value

    def step():
        for each in tensors:
            each.grad = None
        result = run(*tensors)
        if result.requires_grad:
            result.backward()
        return result.item()

    return step


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("expression", choices=sorted(EXPRESSIONS))
    parser.add_argument("batch", type=int, help="of no meaning here")
    parser.add_argument("threads", type=int)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    step = make_step(options)
    kind = "compiled" if options.compile else "eager"
    torch_rounds.run(step, kind)


if __name__ == "__main__":
    main()
