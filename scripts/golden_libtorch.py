"""Ten steps of programs as libtorch's users write them, for tests/nn/program_libtorch_test.cpp: as golden_models.py."""

import math

import torch
import torch.nn.functional as F
from golden_models import real, record, tokens
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence


class Flow(nn.Module):
    """A real-valued flow of four coupling layers."""

    def __init__(self):
        super().__init__()
        self.scales = nn.ModuleList([nn.Sequential(nn.Linear(2, 6), nn.LeakyReLU(), nn.Linear(6, 2), nn.Tanh()) for _ in range(4)])
        self.shifts = nn.ModuleList([nn.Sequential(nn.Linear(2, 6), nn.LeakyReLU(), nn.Linear(6, 2)) for _ in range(4)])

    def forward(self, x):
        total = torch.zeros(x.size(0), dtype=x.dtype)
        for i, (scale, shift) in enumerate(zip(self.scales, self.shifts)):
            mask = torch.tensor([1.0, 0.0] if i % 2 else [0.0, 1.0], dtype=x.dtype)
            kept = x * mask
            s = scale(kept) * (1 - mask)
            x = kept + (1 - mask) * (x * torch.exp(s) + shift(kept))
            total += s.sum(-1)
        return -0.5 * (x.pow(2) + math.log(2 * math.pi)).sum(1) + total


def flow():
    net = Flow()
    return net, {"x": real("flow x", (12, 2))}, lambda net, d: -net(d["x"]).mean(), torch.optim.Adam(net.parameters(), lr=0.01)


class WaveNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        for part, width in (("filter", 4), ("gate", 4)):
            setattr(self, part, nn.ModuleList([nn.Conv1d(4, width, 2, dilation=d) for d in (1, 2, 4)]))
        self.residual = nn.ModuleList([nn.Conv1d(4, 4, 1) for _ in range(3)])
        self.skip = nn.ModuleList([nn.Conv1d(4, 6, 1) for _ in range(3)])
        self.out = nn.Conv1d(6, 8, 1)

    def forward(self, wave):
        x, skips = self.embed(wave).transpose(1, 2), 0
        for f, g, r, s in zip(self.filter, self.gate, self.residual, self.skip):
            padded = F.pad(x, (f.dilation[0], 0))
            h = torch.tanh(f(padded)) * torch.sigmoid(g(padded))
            skips, x = skips + s(h), r(h) + x
        return self.out(F.relu(skips))


def wavenet():
    data = {"wave": real("wavenet wave", (2, 13))}
    net = WaveNet()

    def loss(net, d):
        mu = 7.0
        signal = torch.sign(d["wave"]) * torch.log1p(mu * d["wave"].abs()) / math.log1p(mu)
        coded = ((signal + 1) / 2 * mu + 0.5).long()
        return F.cross_entropy(net(coded[:, :-1]), coded[:, 1:], reduction="sum")

    return net, data, loss, torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.01)


class Dueling(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.advantage, self.worth = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x):
        h = F.relu(self.fc1(x))
        a = self.advantage(h)
        return self.worth(h) + a - a.mean(1, keepdim=True)


def dueling_dqn():
    data = {"x": real("dqn x", (6, 4)), "next": real("dqn next", (6, 4)), "action": tokens("dqn action", (6,), 3),
            "reward": real("dqn reward", (6,), -2, 2), "done": tokens("dqn done", (6,), 2).double()}
    net = Dueling()

    def loss(net, d):
        with torch.no_grad():
            best = net(d["next"])
            target = d["reward"] + 0.99 * best.gather(1, best.argmax(1, keepdim=True)).squeeze(1) * (1 - d["done"])
        value = F.smooth_l1_loss(net(d["x"]).gather(1, d["action"].unsqueeze(1)).squeeze(1), target)
        for p in net.parameters():
            if not p._backward_hooks:
                p.register_hook(lambda g: g.clamp(-0.05, 0.05))
        return value

    return net, data, loss, torch.optim.RMSprop(net.parameters(), lr=0.01)


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.a1, self.a2, self.c1, self.c2 = nn.Linear(3, 6), nn.Linear(6, 2), nn.Linear(3, 6), nn.Linear(6, 1)
        self.log_std = nn.Parameter(torch.full((2,), -0.5))

    def forward(self, x):
        return torch.tanh(self.a2(torch.tanh(self.a1(x)))), self.c2(torch.tanh(self.c1(x)))


def ppo():
    data = {"x": real("ppo x", (8, 3)), "action": real("ppo action", (8, 2)), "log_prob": real("ppo log_prob", (8, 2), -2, -0.5),
            "returns": real("ppo returns", (8, 1)), "advantage": real("ppo advantage", (8, 1))}
    net = ActorCritic()

    def loss(net, d):
        mu, value = net(d["x"])
        var = (net.log_std + net.log_std).exp()
        log_prob = -((d["action"] - mu) ** 2) / (2 * var) - net.log_std - math.log(math.sqrt(2 * math.pi))
        ratio = (log_prob - d["log_prob"]).exp()
        actor = -torch.min(ratio * d["advantage"], torch.clamp(ratio, 0.8, 1.2) * d["advantage"]).mean()
        entropy = 0.5 + 0.5 * math.log(2 * math.pi) + net.log_std
        return 0.5 * (d["returns"] - value).pow(2).mean() + actor - 0.01 * entropy.mean()

    return net, data, loss, torch.optim.Adam(net.parameters(), lr=0.01)


class SpectralCritic(nn.Module):
    """A convolution divided by the largest singular value of its weight, found by one step of the power method each time."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 4, 3), nn.Linear(4 * 3 * 3, 1)

    def forward(self, x, u):
        w = self.conv.weight.view(4, -1)
        with torch.no_grad():
            v = F.normalize(w.t().mv(u), dim=0)
            u.copy_(F.normalize(w.mv(v), dim=0))
        h = F.conv2d(x, self.conv.weight / torch.dot(u.clone(), w.mv(v)), self.conv.bias)
        return self.fc(F.leaky_relu(F.max_pool2d(h, 2), 0.2).flatten(1))


def spectral_critic():
    data = {"real": real("sn real", (4, 1, 8, 8)), "fake": real("sn fake", (4, 1, 8, 8)), "u": real("sn u", (4,), 0.1, 1.0)}
    net = SpectralCritic()
    state = {}

    def loss(net, d):
        u = state.setdefault("u", d["u"].clone())
        return F.relu(1 - net(d["real"], u)).mean() + F.relu(1 + net(d["fake"], u)).mean()

    return net, data, loss, torch.optim.Adam(net.parameters(), lr=0.01, betas=(0.0, 0.9))


class PackedText(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 4, padding_idx=0)
        self.lstm = nn.LSTM(4, 3, 2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(6, 3, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(6, 3)

    def forward(self, text, lengths, h0):
        packed = pack_padded_sequence(self.embed(text), lengths, batch_first=True, enforce_sorted=False)
        out, (h, c) = self.lstm(packed)
        out, last = self.gru(out, h0)
        padded, _ = pad_packed_sequence(out, batch_first=True, padding_value=0.5)
        return self.fc(torch.cat([h[-2], c[-1]], 1)) + self.fc(torch.cat([last[0], last[1]], 1)) + padded.mean((1, 2)).unsqueeze(1)


def packed_text():
    lengths = torch.tensor([5, 3, 7, 2, 7])
    texts = [tokens(f"packed {i}", (int(n),), 11) + 1 for i, n in enumerate(lengths)]
    data = {"text": pad_sequence(texts, batch_first=True), "lengths": lengths, "h0": real("packed h0", (2, 5, 3)),
            "y": torch.tensor([0, 1, 2, 1, 0])}
    net = PackedText()

    def loss(net, d):
        return F.cross_entropy(net(d["text"], d["lengths"], d["h0"]), d["y"])

    return net, data, loss, torch.optim.Adagrad(net.parameters(), lr=0.1)


class Image(nn.Module):
    """An image that is given the features of one and the Gram matrices of another."""

    def __init__(self):
        super().__init__()
        self.image = nn.Parameter(torch.rand(1, 3, 6, 6))

    def forward(self, content, style, weight):
        def features(x):
            return F.relu(F.conv2d(x, weight, padding=1))

        def gram(x):
            f = x.flatten(2)
            return f.bmm(f.transpose(1, 2)) / f[0].numel()

        f = features(self.image)
        return F.mse_loss(f, features(content)) + 10 * F.mse_loss(gram(f), gram(features(style)))


def style_lbfgs():
    data = {"content": real("style content", (1, 3, 6, 6), 0, 1), "style": real("style style", (1, 3, 6, 6), 0, 1),
            "weight": real("style weight", (5, 3, 3, 3), -0.3, 0.3)}
    net = Image()
    return (net, data, lambda net, d: net(d["content"], d["style"], d["weight"]),
            torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=3, history_size=4))


def libtorch_programs():
    return record((flow, wavenet, dueling_dqn, ppo, spectral_critic, packed_text, style_lbfgs))
