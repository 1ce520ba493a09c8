"""The rest of golden_ported.py's programs."""

import math

import torch
import torch.nn.functional as F
from golden_models import real, tokens
from torch import nn


class MixtureDensity(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.share, self.mean, self.scale = nn.Linear(2, 8), nn.Linear(8, 3), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x, y):
        h = torch.tanh(self.body(x))
        mean, scale = self.mean(h), F.softplus(self.scale(h)) + 1e-3
        log_prob = -0.5 * ((y.unsqueeze(1) - mean) / scale) ** 2 - scale.log() - 0.5 * math.log(2 * math.pi)
        return -torch.logsumexp(F.log_softmax(self.share(h), -1) + log_prob, -1).mean()


def mixture_density():
    data = {"x": real("mdn x", (9, 2)), "y": real("mdn y", (9,))}
    net = MixtureDensity()
    return net, data, lambda net, d: net(d["x"], d["y"]), torch.optim.Adam(net.parameters(), lr=0.02)


class Quantiles(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 8), nn.Linear(8, 2 * 5)

    def forward(self, x):
        return self.fc2(F.mish(self.fc1(x))).view(-1, 2, 5)


def quantile_dqn():
    data = {"x": real("qr x", (6, 4)), "action": tokens("qr action", (6,), 2), "reward": real("qr reward", (6,)), "next": real("qr next", (6, 4)),
            "done": tokens("qr done", (6,), 2).double()}
    net = Quantiles()

    def loss(net, d):
        taken = net(d["x"]).gather(1, d["action"].view(-1, 1, 1).expand(-1, 1, 5)).squeeze(1)
        with torch.no_grad():
            best = net(d["next"])
            choice = best.mean(2).argmax(1)
            target = d["reward"].unsqueeze(1) + 0.9 * (1 - d["done"]).unsqueeze(1) * best[torch.arange(6), choice]
        tau = (torch.arange(5, dtype=torch.float64) + 0.5) / 5
        diff = target.unsqueeze(1) - taken.unsqueeze(2)
        huber = F.huber_loss(taken.unsqueeze(2).expand(-1, -1, 5), target.unsqueeze(1).expand(-1, 5, -1), reduction="none")
        return ((tau.view(1, 5, 1) - (diff.detach() < 0).double()).abs() * huber).mean(2).sum(1).mean()

    return net, data, loss, torch.optim.Adam(net.parameters(), lr=0.01)


class Pointer(nn.Module):
    """Points at its inputs one after the other; what was taken is masked."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.GRU(2, 6, batch_first=True), nn.GRUCell(2, 6)
        self.key, self.query, self.v = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False), nn.Linear(6, 1, bias=False)

    def forward(self, x, order):
        memory, last = self.encoder(x)
        h, point, total = last[0], torch.zeros_like(x[:, 0]), 0.0
        taken = torch.zeros(x.shape[:2], dtype=torch.bool)
        for t in range(order.size(1)):
            h = self.decoder(point, h)
            scores = self.v(torch.tanh(self.key(memory) + self.query(h).unsqueeze(1))).squeeze(2)
            log_prob = F.log_softmax(scores.masked_fill(taken, float("-inf")), 1)
            choice = order[:, t:t + 1]
            total = total - log_prob.gather(1, choice).mean()
            taken = taken.scatter(1, choice, True)
            point = torch.take_along_dim(x, choice.unsqueeze(2), 1).squeeze(1)
        return total


def pointer():
    x = real("pointer x", (4, 5, 2))
    data = {"x": x, "order": x[:, :, 0].argsort(1)}
    net = Pointer()
    return net, data, lambda net, d: net(d["x"], d["order"]), torch.optim.Adam(net.parameters(), lr=0.02)


class SetTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.q, self.k, self.v, self.o = (nn.Linear(*s) for s in ((3, 8), (8, 8), (8, 8), (8, 8), (8, 8)))
        self.seed, self.norm, self.out = nn.Parameter(real("seed", (1, 2, 8))), nn.LayerNorm(8), nn.Linear(16, 1)

    def mab(self, x, y):
        split = lambda t: torch.cat(t.split(4, 2), 0)
        q, k, v = self.q(x), split(self.k(y)), split(self.v(y))
        a = torch.softmax(split(q).bmm(k.transpose(1, 2)) / math.sqrt(8), 2)
        h = q + torch.cat(a.bmm(v).split(q.size(0), 0), 2)
        return self.norm(h + F.relu(self.o(h)))

    def forward(self, x):
        z = self.up(x)
        z = self.mab(z, z)
        return self.out(self.mab(self.seed.repeat(x.size(0), 1, 1), z).flatten(1)).squeeze(1)


def set_transformer():
    x = real("set x", (5, 6, 3))
    data = {"x": x, "y": x.amax((1, 2)) - x.median(1).values.sum(1)}
    net = SetTransformer()
    return net, data, lambda net, d: F.l1_loss(net(d["x"]), d["y"]), torch.optim.Adam(net.parameters(), lr=0.01)


class FourierField(nn.Module):
    """Fourier features of places, regressed to a phase and a size."""

    def __init__(self):
        super().__init__()
        self.frequencies = nn.Parameter(3 * real("frequencies", (2, 5)))
        self.fc1, self.fc2 = nn.Linear(10, 8), nn.Linear(8, 2)

    def forward(self, places):
        angle = 2 * math.pi * places @ self.frequencies
        h = torch.asinh(self.fc1(torch.hstack([angle.sin(), angle.cos()])))
        re, im = self.fc2(h).unbind(1)
        return torch.atan2(im, re), torch.hypot(re, im)


def fourier_field():
    grid = torch.cartesian_prod(torch.linspace(-1, 1, 4), torch.linspace(0, 1, 3)).double()
    data = {"places": grid, "phase": real("phase", (12,), -3, 3), "size": real("size", (12,), 0.5, 2)}
    net = FourierField()

    def loss(net, d):
        phase, size = net(d["places"])
        wrapped = torch.remainder(phase - d["phase"] + math.pi, 2 * math.pi) - math.pi
        return wrapped.square().mean() + torch.logaddexp(size - d["size"], d["size"] - size).mean()

    return net, data, loss, torch.optim.Adam(net.parameters(), lr=0.005)


class Quantiser(nn.Module):
    """Product quantisation with a straight-through gradient; the code books are moved to the means of what chose them."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(6, 8), nn.Linear(8, 6)
        self.register_buffer("book", real("book", (2, 3, 4)))

    def forward(self, x):
        z = self.encode(x).view(-1, 2, 4).transpose(0, 1)
        code = torch.cdist(z.detach(), self.book).argmin(2)
        q = self.book.gather(1, code.unsqueeze(2).expand(-1, -1, 4))
        with torch.no_grad():
            at = code.unsqueeze(2).expand(-1, -1, 4)
            new = torch.zeros_like(self.book).scatter_reduce(1, at, z, "mean", include_self=False)
            used = torch.stack([torch.bincount(c, minlength=3) for c in code]).unsqueeze(2) > 0
            self.book.copy_(torch.where(used, torch.lerp(self.book, new, 0.5), self.book))
        straight = z + (q - z).detach()
        y = self.decode(straight.transpose(0, 1).flatten(1))
        return F.mse_loss(y, x) + 0.25 * F.mse_loss(z, q.detach())


def quantiser():
    data = {"x": real("pq x", (10, 6)), "book": real("book", (2, 3, 4))}
    net = Quantiser()
    return net, data, lambda net, d: net(d["x"]), torch.optim.SGD(net.parameters(), lr=0.2)


class Video(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm, self.conv2 = nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.Conv3d(4, 6, (1, 3, 3), stride=(1, 2, 2), groups=2)
        self.up, self.out = nn.ConvTranspose1d(6, 4, 3, stride=2, padding=1, output_padding=1), nn.Linear(4, 3)

    def forward(self, x):
        x = F.max_pool3d(F.relu(self.norm(self.conv1(x))), (1, 2, 2))
        x = F.hardswish(self.conv2(x)).mean((3, 4))
        return self.out(self.up(x).transpose(1, 2)).log_softmax(-1)


def video():
    data = {"x": real("video x", (2, 1, 5, 8, 8)), "words": torch.tensor([[1, 2], [2, 1]])}
    net = Video()

    def loss(net, d):
        lp = net(d["x"]).transpose(0, 1)
        return F.ctc_loss(lp, d["words"], torch.tensor([10, 10]), torch.tensor([2, 2]))

    return net, data, loss, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)


class Ranker(nn.Module):
    """Plackett and Luce's likelihood of a ranking, and a Dirichlet over three kinds."""

    def __init__(self):
        super().__init__()
        self.score, self.kind = nn.Bilinear(3, 2, 1), nn.Linear(3, 3)

    def forward(self, items, user, shares):
        s = self.score(items, user.unsqueeze(1).expand(-1, items.size(1), -1).contiguous()).squeeze(2)
        ranking = (torch.logcumsumexp(s.flip(1), 1).flip(1) - s).sum(1).mean()
        a = F.softplus(self.kind(items.mean(1))) + 0.1
        log_prob = ((a - 1) * shares.log()).sum(1) + torch.lgamma(a.sum(1)) - torch.lgamma(a).sum(1)
        total = a.sum(1)
        entropy = torch.lgamma(a).sum(1) - torch.lgamma(total) + (total - 3) * torch.digamma(total) - ((a - 1) * torch.digamma(a)).sum(1)
        return ranking - log_prob.mean() - 0.01 * entropy.mean()


def ranker():
    shares = real("shares", (4, 3), 0.1, 1.0)
    data = {"items": real("rank items", (4, 5, 3)), "user": real("rank user", (4, 2)), "shares": shares / shares.sum(1, keepdim=True)}
    net = Ranker()
    return net, data, lambda net, d: net(d["items"], d["user"], d["shares"]), torch.optim.Adam(net.parameters(), lr=0.02)


class Surface(nn.Module):
    """Heights of a grid by a network; normals by cross products, compared where they are visible."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(2, 8), nn.Linear(8, 1)

    def forward(self, x, y):
        xy = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)
        points = torch.cat([xy, self.fc2(torch.sin(self.fc1(xy)))], -1)
        a, b = points.diff(dim=0)[:, :-1], points.diff(dim=1)[:-1]
        return F.normalize(torch.linalg.cross(b, a), dim=-1)


def surface():
    data = {"x": torch.linspace(-1, 1, 5).double(), "y": torch.linspace(-1, 1, 4).double(), "normals": real("normals", (3, 4, 3)),
            "mask": tokens("surface mask", (3, 4), 3).gt(0)}
    net = Surface()

    def loss(net, d):
        n = net(d["x"], d["y"])
        away = (1 - F.cosine_similarity(n, d["normals"], dim=-1)).masked_select(d["mask"])
        worst = away.kthvalue(2).values + away.quantile(0.75)
        return away.mean() + 0.1 * worst + 0.01 * n.cummax(0).values.mean()

    return net, data, loss, torch.optim.Adam(net.parameters(), lr=0.02)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.fc3(torch.tanh(self.fc2(F.softplus(self.fc1(x)))))


def wgan_gp():
    """A critic with gradient penalty: backward through backward."""
    data = {k: real(f"wgan {k}", (6, 3)) for k in ("real", "fake")}
    data["share"] = real("wgan share", (6, 1), 0, 1)
    net = Critic()

    def loss(net, d):
        x = (d["share"] * d["real"] + (1 - d["share"]) * d["fake"]).requires_grad_()
        slope, = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        return net(d["fake"]).mean() - net(d["real"]).mean() + 10 * (slope.norm(2, 1) - 1).square().mean()

    return net, data, loss, torch.optim.Adam(net.parameters(), lr=0.01)


PROGRAMS = (mixture_density, quantile_dqn, pointer, set_transformer, fourier_field, quantiser, video, ranker, surface,
            wgan_gp)
