"""The seven models in torch: layer by layer what models.py has in Keras."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

NORM = 1e-3  # epsilon of Keras's norms
MOMENTUM = 0.01  # of Keras's moving averages, as torch counts it


class Polynomial(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x * x, x, torch.ones_like(x)], dim=1) @ self.w


class Channels(nn.Module):
    """Images come with channels last, in memory too; torch's dims have them first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.permute(0, 3, 1, 2)


class Recurrent(nn.Module):
    """Two LSTMs; torch has a second bias, which Keras has not: it stays at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(28, 64, num_layers=2, batch_first=True)
        for name, parameter in self.lstm.named_parameters():
            if name.startswith("bias_hh"):
                nn.init.zeros_(parameter)
                parameter.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0][:, -1]


class Attention(nn.Module):
    """A transformer block: attention and a small network, each added to what it got."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width, eps=NORM), nn.LayerNorm(width, eps=NORM)
        self.inward, self.outward = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.hidden, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        parts = self.inward(self.first(x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value)
        x = x + self.outward(seen.transpose(1, 2).reshape(rows, length, width))
        return x + self.narrow(functional.gelu(self.hidden(self.second(x))))


class Positions(nn.Module):
    """Adds a learned vector for each position."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(0.1 * torch.randn(length, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.vectors


class Mean(nn.Module):
    """Over the positions."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=1)


class ImageMean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=(2, 3))


def table(words: int, width: int) -> nn.Embedding:
    made = nn.Embedding(words, width)
    nn.init.uniform_(made.weight, -0.05, 0.05)
    return made


def conv_and_norm(inward: int, outward: int) -> list[nn.Module]:
    return [
        nn.Conv2d(inward, outward, 3, padding=1, bias=False),
        nn.BatchNorm2d(outward, eps=NORM, momentum=MOMENTUM),
        nn.ReLU(),
    ]


def mlp() -> nn.Module:
    wide = [nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)]
    return nn.Sequential(nn.Flatten(), *wide)


def cnn() -> nn.Module:
    first = [nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    dense = [nn.Flatten(), nn.Linear(7 * 7 * 64, 256), nn.ReLU(), nn.Linear(256, 10)]
    return nn.Sequential(Channels(), *first, *second, *dense)


def cifar() -> nn.Module:
    return nn.Sequential(
        Channels(),
        *conv_and_norm(3, 16),
        nn.MaxPool2d(2),
        *conv_and_norm(16, 32),
        nn.MaxPool2d(2),
        *conv_and_norm(32, 64),
        ImageMean(),
        nn.Linear(64, 10),
    )


def lstm() -> nn.Module:
    return nn.Sequential(Recurrent(), nn.Linear(64, 10))


def embedding() -> nn.Module:
    return nn.Sequential(table(50_000, 64), Mean(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def transformer() -> nn.Module:
    blocks = [Attention(64, 4), Attention(64, 4)]
    return nn.Sequential(table(5_000, 64), Positions(16, 64), *blocks, Mean(), nn.Linear(64, 10))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "polynomial": Polynomial,
    "mlp": mlp,
    "cnn": cnn,
    "cifar": cifar,
    "lstm": lstm,
    "embedding": embedding,
    "transformer": transformer,
}


def loss(name: str, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The mean over the examples."""
    if name == "polynomial":
        return ((output - y) ** 2).mean()
    return functional.cross_entropy(output, y)


def num_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
