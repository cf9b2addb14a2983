"""Five public networks as their papers and reference code define them, built without downloads: for counts only."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)),
        )
        project = stride != 1 or inputs != 4 * width
        shortcut = [nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)] if project else []
        self.shortcut = nn.Sequential(*shortcut)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


class ResNet50(nn.Sequential):
    """He et al. 2015, with the stride in the 3x3 convolution, as torchvision has it."""

    def __init__(self) -> None:
        stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        blocks, inputs = [], 64
        for width, depth in ((64, 3), (128, 4), (256, 6), (512, 3)):
            for number in range(depth):
                blocks.append(Bottleneck(inputs, width, 2 if number == 0 and width > 64 else 1))
                inputs = 4 * width
        super().__init__(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


class Attention(nn.Module):
    """Multi-head, with one product for query, key and value where they are packed."""

    def __init__(self, width: int, heads: int, *, causal: bool = False, packed: bool = True) -> None:
        super().__init__()
        sizes = [3 * width] if packed else [width] * 3
        self.project = nn.ModuleList(nn.Linear(width, size) for size in sizes)
        self.out, self.heads, self.causal = nn.Linear(width, width), heads, causal

    def forward(self, x: Tensor) -> Tensor:
        joined = torch.cat([layer(x) for layer in self.project], -1)
        query, key, value = (part.reshape(*x.shape[:2], self.heads, -1).transpose(1, 2) for part in joined.chunk(3, -1))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        result: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result


class Block(nn.Module):
    """Of a transformer, with the normalisation before or after each part."""

    def __init__(self, width: int, heads: int, *, first: bool, eps: float, **attention: bool) -> None:
        super().__init__()
        self.attention = Attention(width, heads, **attention)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norms, self.first = nn.ModuleList(nn.LayerNorm(width, eps=eps) for _ in range(2)), first

    def forward(self, x: Tensor) -> Tensor:
        for norm, part in zip(self.norms, (self.attention, self.mlp), strict=True):
            x = x + part(norm(x)) if self.first else norm(x + part(x))
        return x


class ViTB16(nn.Module):
    """Dosovitskiy et al. 2020, at 224 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 768, 16, 16)
        self.cls, self.positions = nn.Parameter(torch.zeros(1, 1, 768)), nn.Parameter(torch.zeros(1, 197, 768))
        self.blocks = nn.Sequential(*(Block(768, 12, first=True, eps=1e-6) for _ in range(12)))
        self.norm, self.head = nn.LayerNorm(768, eps=1e-6), nn.Linear(768, 1000)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls.expand(len(x), -1, -1), tokens], 1) + self.positions
        scores: Tensor = self.head(self.norm(self.blocks(tokens))[:, 0])
        return scores


class GPT2(nn.Module):
    """Radford et al. 2019, the small one; the output layer is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(50257, 768), nn.Embedding(1024, 768)
        self.blocks = nn.Sequential(*(Block(768, 12, first=True, eps=1e-5, causal=True) for _ in range(12)))
        self.norm, self.head = nn.LayerNorm(768), nn.Linear(768, 50257, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1], device=input_ids.device))
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


class Bert(nn.Module):
    """Devlin et al. 2018, base, uncased: the encoder with its pooler."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions, self.types = (nn.Embedding(size, 768) for size in (30522, 512, 2))
        self.norm = nn.LayerNorm(768, eps=1e-12)
        self.blocks = nn.Sequential(*(Block(768, 12, first=False, eps=1e-12, packed=False) for _ in range(12)))
        self.pooler = nn.Linear(768, 768)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> dict[str, Tensor]:
        positions = self.positions(torch.arange(input_ids.shape[1], device=input_ids.device))
        hidden = self.blocks(self.norm(self.words(input_ids) + positions + self.types(token_type_ids)))
        return {"last_hidden_state": hidden, "pooler_output": torch.tanh(self.pooler(hidden[:, 0]))}


class GCN(nn.Module):
    """Kipf and Welling 2016, for Cora: 1,433 words, 16 hidden units, 7 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(1433, 16), nn.Linear(16, 7)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        source, target = edge_index
        degree = torch.zeros(len(x), device=x.device).index_add(0, target, torch.ones(len(target), device=x.device))
        scale = (degree[source] * degree[target]).rsqrt()[:, None]
        for number, layer in enumerate(self.layers):
            x = layer(F.relu(x) if number else x)
            x = torch.zeros_like(x).index_add(0, target, x[source] * scale)
        return x
