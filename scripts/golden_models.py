"""Ten steps of small programs as PyTorch's users write them, for tests/nn: weights at the start, data and losses.

Each program is a function that gives a module, its data by name, a loss of the module and the data, and an optimizer.
Everything is computed in float64; what is random in a program (noise, samples) is drawn here and recorded.
"""

import numpy as np
import torch
import torch.nn.functional as F
from golden_recorder import Golden, uniform
from torch import nn

STEPS = 10


def real(name, shape, low=-1.0, high=1.0):
    return torch.from_numpy(uniform(name, shape, low, high)).double()


def tokens(name, shape, count):
    return torch.from_numpy((uniform(name, shape, 0, count)).astype(np.int64))


class WordModel(nn.Module):
    """Embedding, two LSTM layers, decoder; the state goes from one piece of text to the next."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(11, 6)
        self.rnn = nn.LSTM(6, 8, 2)
        self.decoder = nn.Linear(8, 11)
        self.state = None

    def forward(self, text):
        output, state = self.rnn(self.encoder(text), self.state)
        self.state = tuple(s.detach() for s in state)
        return self.decoder(output)


def word_model():
    data = {"text": tokens("word text", (5, 3), 11), "target": tokens("word target", (5, 3), 11)}
    net = WordModel()

    def loss(net, d):
        return F.cross_entropy(net(d["text"]).view(-1, 11), d["target"].view(-1))

    return net, data, loss, torch.optim.SGD(net.parameters(), lr=0.5)


class Seq2Seq(nn.Module):
    """A bidirectional GRU reads, a GRU with attention writes, with the right words as its input."""

    def __init__(self):
        super().__init__()
        self.source = nn.Embedding(9, 5)
        self.encoder = nn.GRU(5, 4, batch_first=True, bidirectional=True)
        self.target = nn.Embedding(7, 5)
        self.decoder = nn.GRUCell(5 + 8, 8)
        self.out = nn.Linear(16, 7)

    def forward(self, source, target):
        memory, h = self.encoder(self.source(source))
        h = torch.cat([h[0], h[1]], 1)
        context, logits = torch.zeros_like(h), []
        for t in range(target.size(1)):
            h = self.decoder(torch.cat([self.target(target[:, t]), context], 1), h)
            weights = F.softmax(torch.bmm(memory, h.unsqueeze(2)).squeeze(2), dim=1)
            context = torch.einsum("nt,ntc->nc", weights, memory)
            logits.append(self.out(torch.cat([h, context], 1)))
        return torch.stack(logits, 1)


def seq2seq():
    data = {"source": tokens("s2s source", (3, 6), 9), "target": tokens("s2s target", (3, 5), 7)}
    net = Seq2Seq()

    def loss(net, d):
        logits = net(d["source"], d["target"][:, :-1])
        return F.nll_loss(F.log_softmax(logits, -1).flatten(0, 1), d["target"][:, 1:].flatten(), ignore_index=0)

    return net, data, loss, torch.optim.RMSprop(net.parameters(), lr=0.01)


class Translation(nn.Module):
    """torch.nn.Transformer between embeddings; words of number 0 are padding."""

    def __init__(self):
        super().__init__()
        self.source = nn.Embedding(9, 12)
        self.target = nn.Embedding(7, 12)
        self.transformer = nn.Transformer(12, 3, 2, 2, 20, dropout=0.0, batch_first=True)
        self.out = nn.Linear(12, 7)

    def forward(self, source, target):
        padding = source == 0
        later = torch.ones(target.size(1), target.size(1), dtype=torch.bool).triu(1)
        return self.out(self.transformer(self.source(source), self.target(target), tgt_mask=later,
                                         src_key_padding_mask=padding, memory_key_padding_mask=padding))


def translation():
    data = {"source": tokens("translation source", (3, 6), 9), "target": tokens("translation target", (3, 5), 7)}
    data["source"][1:, 4:] = 0
    net = Translation()

    def loss(net, d):
        return F.cross_entropy(net(d["source"], d["target"][:, :-1]).flatten(0, 1), d["target"][:, 1:].flatten())

    return net, data, loss, torch.optim.AdamW(net.parameters(), lr=0.01)


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(
            nn.ConvTranspose2d(6, 8, 4, 1, 0, bias=False), nn.BatchNorm2d(8), nn.ReLU(True),
            nn.ConvTranspose2d(8, 1, 4, 2, 1, bias=False), nn.Tanh())
        self.discriminator = nn.Sequential(
            nn.Conv2d(1, 8, 4, 2, 1, bias=False), nn.LeakyReLU(0.2), nn.Conv2d(8, 8, 3, 1, 1), nn.BatchNorm2d(8),
            nn.LeakyReLU(0.2), nn.Conv2d(8, 1, 4, 1, 0), nn.Sigmoid())


def dcgan():
    data = {"real": real("gan real", (4, 1, 8, 8)), "noise": real("gan noise", (4, 6, 1, 1), -1.5, 1.5)}
    net = Gan()
    one = torch.optim.Adam(net.discriminator.parameters(), lr=0.002, betas=(0.5, 0.999))
    other = torch.optim.Adam(net.generator.parameters(), lr=0.002, betas=(0.5, 0.999))
    criterion = nn.BCELoss()
    ones, zeros = torch.ones(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)

    def step(net, d):
        one.zero_grad()
        errors = criterion(net.discriminator(d["real"]).view(-1), ones)
        errors.backward()
        fake = net.generator(d["noise"])
        more = criterion(net.discriminator(fake.detach()).view(-1), zeros)
        more.backward()
        one.step()
        other.zero_grad()
        fooled = criterion(net.discriminator(fake).view(-1), ones)
        fooled.backward()
        other.step()
        return errors + more + fooled

    return net, data, step, None


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.InstanceNorm2d(4, affine=True), nn.ELU())
        self.down2 = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.Hardswish())
        self.bottom = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.Mish())
        self.up2 = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.merge2 = nn.Conv2d(16, 4, 3, padding=1)
        self.merge1 = nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.bottom(F.avg_pool2d(b, 2))
        b = F.relu6(self.merge2(torch.cat([self.up2(c), b], 1)))
        b = F.interpolate(b, scale_factor=2, mode="bilinear")
        return self.merge1(F.pad(torch.cat([b, a], 1), (1, 0, 0, 1), mode="reflect")[:, :, 1:, :-1])


def unet():
    data = {"x": real("unet x", (2, 2, 8, 8)), "mask": (real("unet mask", (2, 1, 8, 8)) > 0).double()}
    net = UNet()

    def loss(net, d):
        logits = net(d["x"])
        p = torch.sigmoid(logits)
        dice = 1 - (2 * (p * d["mask"]).sum() + 1) / (p.sum() + d["mask"].sum() + 1)
        return F.binary_cross_entropy_with_logits(logits, d["mask"]) + dice

    return net, data, loss, torch.optim.Adam(net.parameters(), lr=0.01)


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.mean, self.logvar = nn.Linear(12, 8), nn.Linear(8, 3), nn.Linear(8, 3)
        self.fc3, self.fc4 = nn.Linear(3, 8), nn.Linear(8, 12)

    def forward(self, x, noise):
        h = F.softplus(self.fc1(x))
        mean, logvar = self.mean(h), self.logvar(h)
        z = mean + noise * torch.exp(0.5 * logvar)
        return torch.sigmoid(self.fc4(F.selu(self.fc3(z)))), mean, logvar


def vae():
    data = {"x": real("vae x", (5, 12), 0, 1), "noise": real("vae noise", (5, 3), -2, 2)}
    net = Vae()

    def loss(net, d):
        y, mean, logvar = net(d["x"], d["noise"])
        kld = -0.5 * torch.sum(1 + logvar - mean.pow(2) - logvar.exp())
        return F.binary_cross_entropy(y, d["x"], reduction="sum") + kld

    return net, data, loss, torch.optim.Adagrad(net.parameters(), lr=0.05)


class Gat(nn.Module):
    """Graph attention over a list of edges: softmax over the neighbours of each node."""

    def __init__(self):
        super().__init__()
        self.project, self.attend, self.out = nn.Linear(4, 6, bias=False), nn.Linear(12, 1), nn.Linear(6, 3)

    def forward(self, x, source, target):
        h = self.project(x)
        score = F.leaky_relu(self.attend(torch.cat([h[source], h[target]], 1)).squeeze(1), 0.2)
        weight = torch.exp(score - score.max().detach())
        total = torch.zeros(x.size(0), dtype=x.dtype).scatter_add(0, target, weight)
        h = torch.zeros_like(h).index_add(0, target, h[source] * (weight / total[target]).unsqueeze(1))
        return F.log_softmax(self.out(F.elu(h)), 1)


def gat():
    data = {"x": real("gat x", (6, 4)), "source": tokens("gat source", (14,), 6), "labels": tokens("gat labels", (6,), 3)}
    data["target"] = torch.arange(14) % 6
    net = Gat()

    def loss(net, d):
        return F.nll_loss(net(d["x"], d["source"], d["target"]), d["labels"])

    return net, data, loss, torch.optim.Adam(net.parameters(), lr=0.02, weight_decay=5e-4)


class SuperResolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 4, 3, padding=1)
        self.shuffle = nn.PixelShuffle(2)
        for conv, gain in ((self.conv1, 2.0**0.5), (self.conv2, 1.0)):
            nn.init.orthogonal_(conv.weight, gain)

    def forward(self, x):
        return self.shuffle(self.conv2(F.relu(self.conv1(x))))


def super_resolution():
    data = {"x": real("sr x", (2, 1, 5, 5)), "y": real("sr y", (2, 1, 10, 10))}
    net = SuperResolution()

    def loss(net, d):
        return F.smooth_l1_loss(net(d["x"]), d["y"], beta=0.5)

    return net, data, loss, torch.optim.Adadelta(net.parameters(), lr=1.0)


class Sequence(nn.Module):
    """Two LSTM cells predict the next value of a wave."""

    def __init__(self):
        super().__init__()
        self.lstm1, self.lstm2, self.linear = nn.LSTMCell(1, 5), nn.LSTMCell(5, 5), nn.Linear(5, 1)

    def forward(self, x):
        outputs, first, second = [], None, None
        for value in x.split(1, dim=1):
            first = self.lstm1(value, first)
            second = self.lstm2(first[0], second)
            outputs.append(self.linear(second[0]))
        return torch.cat(outputs, dim=1)


def sequence():
    x = torch.sin(torch.arange(12).double() / 2 + torch.arange(3).double().unsqueeze(1))
    net = Sequence()

    def loss(net, d):
        return F.huber_loss(net(d["x"][:, :-1]), d["x"][:, 1:], delta=0.3)

    return net, {"x": x}, loss, torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine, self.action, self.value = nn.Linear(4, 16), nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, x):
        x = F.relu(self.affine(x))
        return F.softmax(self.action(x), dim=-1), self.value(x)


def actor_critic():
    data = {"states": real("rl states", (8, 4)), "actions": tokens("rl actions", (8,), 3), "rewards": real("rl rewards", (8,))}
    net = ActorCritic()

    def loss(net, d):
        probabilities, values = net(d["states"])
        returns = torch.flip(torch.cumsum(torch.flip(d["rewards"], [0]), 0), [0])
        returns = (returns - returns.mean()) / (returns.std() + 1e-8)
        log_prob = torch.log(probabilities.gather(1, d["actions"].unsqueeze(1))).squeeze(1)
        advantage = returns - values.squeeze(1).detach()
        return (-log_prob * advantage).sum() + F.smooth_l1_loss(values.squeeze(1), returns, reduction="sum")

    return net, data, loss, torch.optim.Adam(net.parameters(), lr=0.03)


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.fc = nn.Conv1d(2, 4, 3, padding=1), nn.Conv1d(4, 4, 3, stride=2), nn.Linear(8, 5)

    def forward(self, x):
        x = F.max_pool1d(F.gelu(self.conv1(x)), 2)
        return F.normalize(self.fc(F.softsign(self.conv2(x)).flatten(1)), dim=1)


def siamese():
    data = {k: real(f"siamese {k}", (4, 2, 10)) for k in ("anchor", "positive", "negative")}
    net = Siamese()

    def loss(net, d):
        a, p, n = net(d["anchor"]), net(d["positive"]), net(d["negative"])
        both = nn.TripletMarginLoss(margin=1.0)(a, p, n)
        return both + nn.CosineEmbeddingLoss(margin=0.1)(a, n, -torch.ones(4, dtype=torch.float64))

    return net, data, loss, torch.optim.AdamW(net.parameters(), lr=0.01)


PROGRAMS = (word_model, seq2seq, translation, dcgan, unet, vae, gat, super_resolution, sequence, actor_critic, siamese)


def models():
    return record(PROGRAMS)


def record(programs):
    """Per program: data, "start.NAME" of each parameter, and the losses of ten steps."""
    g = Golden()
    for program in programs:
        case = program.__name__
        torch.manual_seed(7)
        net, data, loss, optimizer = program()
        net.double()
        for name, values in data.items():
            single = values.float() if values.is_floating_point() else values
            data[name] = single.double() if values.is_floating_point() else single
            g.put(case, name, single)
        with torch.no_grad():
            for name, p in net.named_parameters():
                p.copy_(p.float().double())
                g.put(case, f"start.{name}", p.float())
        losses = []
        for _ in range(STEPS):
            if optimizer is None:
                losses.append(loss(net, data).item())
                continue
            if isinstance(optimizer, torch.optim.LBFGS):
                def closure():
                    optimizer.zero_grad()
                    value = loss(net, data)
                    value.backward()
                    return value

                losses.append(optimizer.step(closure).item())
                continue
            optimizer.zero_grad()
            value = loss(net, data)
            value.backward()
            if case == "word_model":
                torch.nn.utils.clip_grad_norm_(net.parameters(), 0.25)
            optimizer.step()
            losses.append(value.item())
        g.put(case, "losses", np.array(losses))
    return g
