"""Models of published measurements that the course itself does not need: VGG-16, BERT and the vision transformer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu


class VGG16(nn.Sequential):
    """VGG-16 for 1000 classes: 138,357,544 parameters (Simonyan and Zisserman 2015, configuration D)."""

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        inputs = 3
        for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
            for _ in range(count):
                layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU(inplace=True)]
                inputs = width
            layers.append(nn.MaxPool2d(2))
        head = [nn.Linear(512 * 49, 4096), nn.ReLU(True), nn.Linear(4096, 4096), nn.ReLU(True), nn.Linear(4096, 1000)]
        super().__init__(*layers, nn.Flatten(1), *head)


class Block(nn.Module):
    """A block of an encoder.

    Args:
        fused: attention is one kernel, as usual since 2023, else products and softmax.
        first: LayerNorm stands in front of each part (ViT) or behind it (BERT).
        dropout: probability, also of attention's weights.
    """

    def __init__(self, width: int, heads: int, first: bool, dropout: float, fused: bool = False) -> None:
        super().__init__()
        self.heads, self.first, self.fused = heads, first, fused
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def attention(self, x: Tensor) -> Tensor:
        """[batch, length, width] → the same shape."""
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=2))
        if self.fused:
            found = nn.functional.scaled_dot_product_attention(q, k, v)
        else:
            found = self.dropout((q @ k.transpose(2, 3) * q.shape[-1] ** -0.5).softmax(-1)) @ v
        return self.dropout(self.out(found.transpose(1, 2).flatten(2)))

    def mlp(self, x: Tensor) -> Tensor:
        """[batch, length, width] → the same shape."""
        return self.dropout(self.down(gelu(self.up(x))))

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, width] → the same shape."""
        if self.first:
            x = x + self.attention(self.norm1(x))
            return x + self.mlp(self.norm2(x))
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.mlp(x))


class ViT(nn.Module):
    """The vision transformer for images of 224×224 in patches of 16×16 (Dosovitskiy and others 2021).

    ``ViT(12, 768, 12, fused=True)`` is ViT-Base with 86,567,656 parameters.
    """

    def __init__(self, layers: int, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, 197, width))
        self.blocks = nn.Sequential(*(Block(width, heads, True, 0.0, fused) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [batch, 1000] of images [batch, 3, 224, 224]."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], dim=1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


class ConvNeXt(nn.Sequential):
    """ConvNeXt-B for 1000 classes: 88.6 million parameters (Liu and others, A ConvNet for the 2020s, 2022)."""

    def __init__(self, depths: tuple[int, ...] = (3, 3, 27, 3), width: int = 128) -> None:
        layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 4), NormOfChannels(width)]
        for stage, depth in enumerate(depths):
            if stage:
                layers += [NormOfChannels(width), nn.Conv2d(width, 2 * width, 2, 2)]
                width *= 2
            layers += [ConvNeXtBlock(width) for _ in range(depth)]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(width), nn.Linear(width, 1000))


class NormOfChannels(nn.LayerNorm):
    """LayerNorm over the channels of maps [batch, channels, height, width]."""

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """A depthwise convolution, and a network of two layers at each place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, height, width] → the same shape."""
        inner = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.down(gelu(self.up(inner))) * self.scale).permute(0, 3, 1, 2)


class BERT(nn.Module):
    """BERT-Large with its heads for pretraining: 24 layers, width 1024 (Devlin and others 2019).

    336,226,108 parameters with a vocabulary of 30,522, whose table the last layer uses too.
    """

    def __init__(self, layers: int = 24, width: int = 1024, heads: int = 16, vocabulary: int = 30_522) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(512, width)
        self.segments = nn.Embedding(2, width)
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(0.1)
        self.blocks = nn.Sequential(*(Block(width, heads, False, 0.1) for _ in range(layers)))
        self.pooler, self.next = nn.Linear(width, width), nn.Linear(width, 2)
        self.transform, self.transform_norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, tokens: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the masked tokens, and of "is the second sentence the next one?".

        Args:
            tokens: [batch, length]
            masked: [batch · masked tokens of a sequence], places in the flattened batch.
        """
        length = tokens.shape[1]
        places = self.places(torch.arange(length, device=tokens.device))
        x = self.tokens(tokens) + places + self.segments(torch.zeros_like(tokens))
        x = self.blocks(self.dropout(self.norm(x)))
        words = self.transform_norm(gelu(self.transform(x.flatten(0, 1)[masked])))
        return words @ self.tokens.weight.t() + self.bias, self.next(torch.tanh(self.pooler(x[:, 0])))


class GPTByHand(nn.Module):
    """GPT-2 (124M) as a textbook writes it: no biases of queries, keys and values, an output layer of its own.

    Args:
        layers: LayerNorm and GELU are torch's, else written out in small operators.
        flash: attention is torch's, else products, mask, softmax and dropout.
        tied: the output layer shares the table of the embeddings, and there is no dropout, as in GPT-2's reproductions.
    """

    def __init__(self, layers: bool, flash: bool, tied: bool, width: int = 768, vocabulary: int = 50_257) -> None:
        super().__init__()
        norm = nn.LayerNorm if layers else NormByHand
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(1024, width)
        self.dropout = nn.Identity() if tied else nn.Dropout(0.1)
        self.blocks = nn.Sequential(*(BlockByHand(width, norm, layers, flash, self.dropout) for _ in range(12)))
        self.norm, self.head = norm(width), nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [batch, length, vocabulary] of tokens [batch, length]."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(self.dropout(x))))


class NormByHand(nn.Module):
    """LayerNorm in eight small operators."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """[…, width] → the same shape."""
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        return self.scale * ((x - mean) / torch.sqrt(variance + 1e-5)) + self.shift


class BlockByHand(nn.Module):
    """A block of ``GPTByHand``."""

    def __init__(self, width: int, norm: type[nn.Module], layers: bool, flash: bool, dropout: nn.Module) -> None:
        super().__init__()
        self.heads, self.layers, self.flash, self.dropout = 12, layers, flash, dropout
        self.norm1, self.norm2 = norm(width), norm(width)
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("mask", torch.ones(1024, 1024, dtype=torch.bool).triu(1))

    def attention(self, x: Tensor) -> Tensor:
        """[batch, length, width] → the same shape."""
        q, k, v = (part(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        if self.flash:
            found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(2, 3)).masked_fill_(self.mask, -torch.inf)
            found = self.dropout(torch.softmax(scores / k.shape[-1] ** 0.5, dim=-1)) @ v
        return self.out(found.transpose(1, 2).flatten(2))

    def gelu(self, x: Tensor) -> Tensor:
        """[…, 4·width] → the same shape."""
        if self.layers:
            return gelu(x, approximate="tanh")
        return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * torch.pow(x, 3))))

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, width] → the same shape."""
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.down(self.gelu(self.up(self.norm2(x)))))
