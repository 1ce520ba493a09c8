"""Ten steps of programs that no tutorial has, for tests/nn/program_*_ported_test.cpp: as golden_models.py."""

import torch
import torch.nn.functional as F
from golden_models import real, record, tokens
from torch import nn


class MessagePassing(nn.Module):
    """Edges to nodes by maximum, mean and sum; nodes to graphs by mean."""

    def __init__(self):
        super().__init__()
        self.message, self.update, self.out = nn.Linear(7, 6), nn.Linear(4 + 18, 6), nn.Linear(6, 2)

    def forward(self, x, edge, source, target, graph):
        m = F.elu(self.message(torch.cat([x[source], edge], 1)))
        at = target.unsqueeze(1).expand_as(m)
        zeros = torch.zeros(x.size(0), 6, dtype=x.dtype)
        joined = [zeros.scatter_reduce(0, at, m, kind, include_self=False) for kind in ("amax", "mean", "sum")]
        h = torch.tanh(self.update(torch.cat([x] + joined, 1)))
        pooled = torch.zeros(2, 6, dtype=x.dtype).index_reduce(0, graph, h, "mean", include_self=False)
        return self.out(pooled)


def message_passing():
    data = {"x": real("graph x", (7, 4)), "edge": real("graph edge", (12, 3)), "source": tokens("graph source", (12,), 7),
            "target": tokens("graph target", (12,), 6), "graph": torch.tensor([0, 0, 0, 0, 1, 1, 1]), "y": torch.tensor([1, 0])}
    net = MessagePassing()

    def loss(net, d):
        return F.cross_entropy(net(d["x"], d["edge"], d["source"], d["target"], d["graph"]), d["y"])

    return net, data, loss, torch.optim.Adam(net.parameters(), lr=0.02)


class AttentionUNet(nn.Module):
    """Group norm, attention over the pixels of the lowest layer, skip connection."""

    def __init__(self):
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4)
        self.down, self.norm2 = nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.GroupNorm(4, 8)
        self.qkv, self.merge = nn.Conv2d(8, 24, 1), nn.Conv2d(8, 8, 1)
        self.up, self.last = nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Conv2d(8, 2, 1)

    def forward(self, x):
        a = F.silu(self.norm1(self.first(x)))
        b = F.silu(self.norm2(self.down(a)))
        n, c, h, w = b.shape
        q, k, v = self.qkv(b).view(n, 3, 2, c // 2, h * w).transpose(-1, -2).unbind(1)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(n, c, h, w)
        b = b + self.merge(mixed)
        return self.last(torch.cat([a, self.up(b)], 1))


def attention_unet():
    data = {"x": real("unet2 x", (2, 2, 6, 6)), "y": real("unet2 y", (2, 2, 6, 6))}
    net = AttentionUNet()
    return net, data, lambda net, d: F.mse_loss(net(d["x"]), d["y"]), torch.optim.Adam(net.parameters(), lr=0.01)


class Perceiver(nn.Module):
    def __init__(self):
        super().__init__()
        self.latents = nn.Parameter(real("latents", (3, 8)))
        self.norm_in, self.norm = nn.LayerNorm(5), nn.LayerNorm(8)
        self.q, self.kv, self.mlp, self.out = nn.Linear(8, 8, bias=False), nn.Linear(5, 16), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x, mask):
        n = x.size(0)
        z = self.latents.expand(n, -1, -1)
        for _ in range(2):
            k, v = self.kv(self.norm_in(x)).chunk(2, -1)
            q = self.q(self.norm(z))
            split = lambda t: t.unflatten(-1, (2, 4)).transpose(1, 2)
            bias = torch.zeros(n, 1, 1, x.size(1), dtype=x.dtype).masked_fill(mask[:, None, None, :], float("-inf"))
            z = z + F.scaled_dot_product_attention(split(q), split(k), split(v), attn_mask=bias).transpose(1, 2).flatten(2)
            z = z + F.gelu(self.mlp(self.norm(z)), approximate="tanh")
        return self.out(z.amax(1))


def perceiver():
    data = {"x": real("perceiver x", (4, 6, 5)), "mask": tokens("perceiver mask", (4, 6), 3).eq(0), "y": torch.arange(4)}
    data["mask"][:, 0] = False
    net = Perceiver()
    return net, data, lambda net, d: F.cross_entropy(net(d["x"], d["mask"]), d["y"]), torch.optim.AdamW(net.parameters(), lr=0.01)


class HyperNetwork(nn.Module):
    """A small network makes the kernel of a convolution and the weight of a linear layer for each sample."""

    def __init__(self):
        super().__init__()
        self.code = nn.Embedding(3, 4)
        self.to_kernel, self.to_weight = nn.Linear(4, 3 * 2 * 9), nn.Linear(4, 5 * 3)

    def forward(self, x, task):
        n = x.size(0)
        z = self.code(task)
        kernel = self.to_kernel(z).view(n * 3, 2, 3, 3)
        y = F.conv2d(x.reshape(1, n * 2, 6, 6), kernel, groups=n, padding=1).view(n, 3, 36)
        y = F.leaky_relu(y, 0.1).mean(2)
        return torch.einsum("noi,ni->no", self.to_weight(z).view(n, 5, 3), y)


def hypernetwork():
    data = {"x": real("hyper x", (4, 2, 6, 6)), "task": torch.tensor([0, 1, 2, 1]), "y": torch.tensor([0, 4, 2, 3])}
    net = HyperNetwork()
    return net, data, lambda net, d: F.nll_loss(F.log_softmax(net(d["x"], d["task"]), 1), d["y"]), torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


class NeuralODE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(3, 8), nn.Linear(8, 2)

    def slope(self, t, y):
        return self.fc2(torch.tanh(self.fc1(torch.cat([y, torch.full_like(y[:, :1], t)], 1))))

    def forward(self, y):
        path, h = [y], 0.25
        for i in range(4):
            t = i * h
            k1 = self.slope(t, y)
            k2 = self.slope(t + h / 2, y + h / 2 * k1)
            k3 = self.slope(t + h / 2, torch.add(y, k2, alpha=h / 2))
            k4 = self.slope(t + h, y + h * k3)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            path.append(y)
        return torch.stack(path)


def neural_ode():
    data = {"y0": real("ode y0", (5, 2)), "path": real("ode path", (5, 5, 2))}
    net = NeuralODE()
    return net, data, lambda net, d: (net(d["y0"]) - d["path"]).abs().mean(), torch.optim.Adam(net.parameters(), lr=0.01)


class Tagger(nn.Module):
    """A bidirectional LSTM under a conditional random field, with sentences of different lengths."""

    def __init__(self):
        super().__init__()
        self.words, self.rnn, self.scores = nn.Embedding(12, 5), nn.LSTM(5, 4, batch_first=True, bidirectional=True), nn.Linear(8, 4)
        self.moves, self.first = nn.Parameter(real("moves", (4, 4))), nn.Parameter(real("first", (4,)))

    def forward(self, words, tags, mask):
        e = self.scores(self.rnn(self.words(words))[0])
        alpha = self.first + e[:, 0]
        path = self.first[tags[:, 0]] + e[:, 0].gather(1, tags[:, :1]).squeeze(1)
        for t in range(1, words.size(1)):
            new = torch.logsumexp(alpha.unsqueeze(2) + self.moves, 1) + e[:, t]
            alpha = torch.where(mask[:, t].unsqueeze(1), new, alpha)
            step = self.moves[tags[:, t - 1], tags[:, t]] + e[:, t].gather(1, tags[:, t:t + 1]).squeeze(1)
            path = path + step * mask[:, t]
        return (torch.logsumexp(alpha, 1) - path).mean()


def tagger():
    lengths = torch.tensor([6, 4, 3])
    data = {"words": tokens("crf words", (3, 6), 12), "tags": tokens("crf tags", (3, 6), 4), "mask": torch.arange(6) < lengths[:, None]}
    net = Tagger()
    return net, data, lambda net, d: net(d["words"], d["tags"], d["mask"]), torch.optim.SGD(net.parameters(), lr=0.2)


class Equilibrium(nn.Module):
    """The fixed point of a layer, found without recording; the gradient goes through one step from it."""

    def __init__(self):
        super().__init__()
        self.inner, self.inject, self.out = nn.Linear(6, 6, bias=False), nn.Linear(3, 6), nn.Linear(6, 2)

    def forward(self, x):
        injected = self.inject(x)
        z = torch.zeros_like(injected)
        with torch.no_grad():
            for _ in range(50):
                before, z = z, torch.tanh(0.5 * self.inner(z) + injected)
                if (z - before).norm() < 1e-3 * z.norm():
                    break
        return self.out(torch.tanh(0.5 * self.inner(z) + injected))


def equilibrium():
    data = {"x": real("deq x", (6, 3)), "y": real("deq y", (6, 2))}
    net = Equilibrium()
    return net, data, lambda net, d: F.smooth_l1_loss(net(d["x"]), d["y"], beta=0.5), torch.optim.RMSprop(net.parameters(), lr=0.01)


class Capsules(nn.Module):
    """Dynamic routing of 6 capsules to 3."""

    def __init__(self):
        super().__init__()
        self.conv, self.votes = nn.Conv2d(1, 8, 3, stride=2), nn.Parameter(real("votes", (3, 18, 5, 4)))

    def squash(self, s):
        square = s.square().sum(-1, keepdim=True)
        return s * (square / (1 + square) / (square + 1e-8).sqrt())

    def forward(self, x):
        u = self.squash(self.conv(x).view(x.size(0), 2, 4, 9).permute(0, 1, 3, 2).reshape(x.size(0), 18, 4))
        votes = torch.einsum("jiab,nib->nija", self.votes, u)
        logits = torch.zeros(votes.shape[:3], dtype=x.dtype)
        for turn in range(3):
            c = logits.softmax(2)
            v = self.squash((c.unsqueeze(-1) * votes).sum(1))
            if turn < 2:
                logits = logits + (votes * v.unsqueeze(1)).sum(-1).detach()
        return v.norm(dim=-1)


def capsules():
    data = {"x": real("caps x", (4, 1, 8, 8)), "y": torch.tensor([0, 1, 2, 1])}
    net = Capsules()

    def loss(net, d):
        length, wanted = net(d["x"]), F.one_hot(d["y"], 3).double()
        return (wanted * F.relu(0.9 - length) ** 2 + 0.5 * (1 - wanted) * F.relu(length - 0.1) ** 2).sum(1).mean()

    return net, data, loss, torch.optim.Adam(net.parameters(), lr=0.01)


class DeepFM(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.factors = nn.EmbeddingBag(20, 1, mode="sum"), nn.Embedding(20, 4)
        self.bag = nn.EmbeddingBag(20, 4, mode="max", padding_idx=0)
        self.deep1, self.deep2 = nn.Linear(12 + 4, 8), nn.Linear(8, 1)

    def forward(self, fields, weights, history, offsets):
        v = self.factors(fields) * weights.unsqueeze(2)
        pairs = 0.5 * (v.sum(1) ** 2 - (v ** 2).sum(1)).sum(1)
        deep = self.deep2(F.relu(self.deep1(torch.cat([v.flatten(1), self.bag(history, offsets)], 1)))).squeeze(1)
        return self.linear(fields, per_sample_weights=weights).squeeze(1) + pairs + deep


def deep_fm():
    data = {"fields": tokens("fm fields", (5, 3), 20), "weights": real("fm weights", (5, 3), 0.2, 1.0), "history": tokens("fm history", (9,), 20),
            "offsets": torch.tensor([0, 2, 2, 5, 8]), "y": torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0]).double()}
    net = DeepFM()

    def loss(net, d):
        return F.binary_cross_entropy_with_logits(net(d["fields"], d["weights"], d["history"], d["offsets"]), d["y"])

    return net, data, loss, torch.optim.Adagrad(net.parameters(), lr=0.05)


def ported():
    from golden_ported_more import PROGRAMS
    first = (message_passing, attention_unet, perceiver, hypernetwork, neural_ode, tagger, equilibrium, capsules, deep_fm)
    return record(first + PROGRAMS)
