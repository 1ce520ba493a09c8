#!/usr/bin/env python3
"""train_throughput's models and steps in PyTorch, eager or compiled, told over standard input how many steps to run.

usage: torch_train_throughput.py MODEL BATCH THREADS [--compile] [--channels-last] [--bf16]

The protocol, the models and the data's shapes are those of bench/train_rounds.h; bench/run_train_throughput.py starts it.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

import torch_rounds

IMAGES, WINDOWS, VOCABULARY = 60000, {"gpt": 256, "gpt_1024": 1024}, 65


class LeNet(nn.Module):
    def __init__(self, norms=False):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.bn1, self.bn2 = (nn.BatchNorm2d(10), nn.BatchNorm2d(20)) if norms else (nn.Identity(), nn.Identity())
        self.fc1, self.fc2 = nn.Linear(320, 50), nn.Linear(50, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.bn1(self.conv1(x)), 2))
        x = F.relu(F.max_pool2d(self.bn2(self.conv2(x)), 2))
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = self.dropout1(F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2))
        return self.fc2(self.dropout2(F.relu(self.fc1(x.flatten(1)))))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(784, 512), nn.Linear(512, 512), nn.Linear(512, 10)

    def forward(self, x):
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1))))))


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = (z.view(n, t, self.heads, c // self.heads).transpose(1, 2) for z in self.c_attn(self.ln_1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(n, t, c))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, context, width=384, heads=6, layers=6):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, width), nn.Embedding(context, width)
        self.h = nn.ModuleList([GptBlock(width, heads) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(width)
        nn.init.normal_(self.wte.weight, 0, 0.02)
        nn.init.normal_(self.wpe.weight, 0, 0.02)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight).flatten(0, 1)


class Vit(nn.Module):
    def __init__(self, width=192, heads=3, layers=6):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.positions = nn.Parameter(torch.randn(64, width) * 0.02)
        self.blocks = nn.ModuleList([
            nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
            for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class MixerBlock(nn.Module):
    def __init__(self, positions, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.token1, self.token2 = nn.Linear(positions, width // 2), nn.Linear(width // 2, positions)
        self.channel1, self.channel2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.token2(F.gelu(self.token1(self.norm1(x).transpose(1, 2)))).transpose(1, 2)
        return x + self.channel2(F.gelu(self.channel1(self.norm2(x))))


class Mixer(nn.Module):
    def __init__(self, width=192, layers=4):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.blocks = nn.ModuleList([MixerBlock(64, width) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class MlpGelu(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(784, width), nn.Linear(width, width), nn.Linear(width, width)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout, self.head = nn.Dropout(0.1), nn.Linear(width, 10)

    def forward(self, x):
        x = self.dropout(F.gelu(self.norm1(self.fc1(x.flatten(1)))))
        x = x + self.dropout(F.gelu(self.fc2(self.norm2(x))))
        x = x + self.dropout(F.gelu(self.fc3(self.norm3(x))))
        return self.head(x)


class Lstm(nn.Module):
    """Gate by gate, as bench/lstm.h."""

    def __init__(self, width=128):
        super().__init__()
        self.width = width
        self.of_input, self.of_state, self.head = nn.Linear(28, 4 * width), nn.Linear(width, 4 * width), nn.Linear(width, 10)

    def forward(self, x):
        rows = x.squeeze(1)
        h = c = torch.zeros(x.shape[0], self.width)
        for t in range(rows.shape[1]):
            i, f, g, o = (self.of_input(rows[:, t]) + self.of_state(h)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return self.head(h)


class LstmLayer(nn.Module):
    """The same by the library's own layer."""

    def __init__(self, width=128):
        super().__init__()
        self.lstm, self.head = nn.LSTM(28, width, batch_first=True), nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.lstm(x.squeeze(1))[0][:, -1])


class ResidualBlock(nn.Module):
    def __init__(self, in_, out, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(in_, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.around = nn.Identity()
        if in_ != out or stride != 1:
            self.around = nn.Sequential(nn.Conv2d(in_, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.around(x))


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)
        layers = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
        self.blocks = nn.Sequential(*(ResidualBlock(*layer) for layer in layers))
        self.fc = nn.Linear(512, 10)

    def forward(self, x):
        return self.fc(self.blocks(F.relu(self.bn1(self.conv1(x)))).mean((2, 3)))


class InvertedResidual(nn.Module):
    def __init__(self, in_, out, stride, expansion=6):
        super().__init__()
        wide = in_ * expansion
        self.expand, self.bn1 = nn.Conv2d(in_, wide, 1, bias=False), nn.BatchNorm2d(wide)
        self.depthwise, self.bn2 = nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide)
        self.project, self.bn3 = nn.Conv2d(wide, out, 1, bias=False), nn.BatchNorm2d(out)
        self.has_way_around = in_ == out and stride == 1

    def forward(self, x):
        y = F.relu6(self.bn1(self.expand(x)))
        y = F.relu6(self.bn2(self.depthwise(y)))
        y = self.bn3(self.project(y))
        return x + y if self.has_way_around else y


class MobileNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32)
        layers = [(32, 16, 1), (16, 24, 1), (24, 24, 1), (24, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 96, 1),
                  (96, 160, 2), (160, 160, 1)]
        self.blocks = nn.Sequential(*(InvertedResidual(*layer) for layer in layers))
        self.last, self.bn_last, self.head = nn.Conv2d(160, 640, 1, bias=False), nn.BatchNorm2d(640), nn.Linear(640, 10)

    def forward(self, x):
        x = self.blocks(F.relu6(self.bn(self.stem(x))))
        return self.head(F.relu6(self.bn_last(self.last(x))).mean((2, 3)))


IMAGE_MODELS = {"lenet": LeNet, "lenet-bn": lambda: LeNet(norms=True), "cnn": Cnn, "mlp": Mlp, "lstm_layer": LstmLayer, "resnet18": ResNet18, "mobilenet": MobileNet, "vit": Vit, "mixer": Mixer, "mlp_gelu": MlpGelu, "lstm": Lstm}
COLOUR = {"resnet18", "mobilenet", "vit", "mixer"}
ADAM = {"gpt", "gpt_1024", "vit", "mixer", "mlp_gelu"}


def make_model(name):
    return Gpt(WINDOWS[name]) if name in WINDOWS else IMAGE_MODELS[name]()


def make_step(options):
    net = make_model(options.model)
    if options.channels_last:
        net = net.to(memory_format=torch.channels_last)
    model = torch.compile(net) if options.compile else net
    if options.model in ADAM:
        optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, weight_decay=1e-2, fused=True)
    else:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, fused=True)
    if options.model in WINDOWS:
        window = WINDOWS[options.model]
    else:
        sizes = (IMAGES * 784 // 3072, 3, 32, 32) if options.model in COLOUR else (IMAGES, 1, 28, 28)
        images, labels = torch.rand(sizes) - 0.5, torch.randint(10, (IMAGES,))

    def loss_of_batch():
        if options.model in WINDOWS:
            tokens = torch.randint(VOCABULARY, (options.batch, window + 1))
            return F.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:].reshape(-1))
        index = torch.randint(images.shape[0], (options.batch,))
        x = images[index]
        if options.channels_last:
            x = x.to(memory_format=torch.channels_last)
        return F.cross_entropy(model(x), labels[index])

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=options.bf16):
            loss = loss_of_batch()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if options.model in ADAM:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=sorted(set(IMAGE_MODELS) | set(WINDOWS)))
    parser.add_argument("batch", type=int)
    parser.add_argument("threads", type=int)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--bf16", action="store_true", help="products and convolutions in bfloat16")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    step = make_step(options)
    kind = "compiled" if options.compile else "eager"
    torch_rounds.run(step, f"{kind}{', channels-last' if options.channels_last else ''}")


if __name__ == "__main__":
    main()
