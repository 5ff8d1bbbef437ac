"""A GPT in the style of GPT-2, which can be cut into pieces.

Source: Radford and others: Language Models are Unsupervised Multitask Learners, 2019: LayerNorm in front of each
part of a block and after the last one, learned positions, GELU, biases everywhere but in the last layer.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from utils.training.models.sizes import GPTConfig


class Embeddings(nn.Module):
    """The first piece: a vector for each token, plus one for its place."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, length] → [batch, length, width]"""
        length, context = tokens.shape[1], self.positions.num_embeddings
        if length > context:
            raise ValueError(f"a sequence of {length} tokens is longer than the context of {context}")
        places = torch.arange(length, device=tokens.device)
        return self.dropout(self.tokens(tokens) + self.positions(places))


class Block(nn.Module):
    """Attention, then two layers on each token alone; what each of them finds is added to its input."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        width = config.width
        self.heads, self.dropout_p, self.checkpointing = config.heads, config.dropout, config.checkpointing
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(config.dropout)

    def attention(self, x: Tensor) -> Tensor:
        """Each token collects from those before it and from itself: [batch, length, width] → the same shape."""
        # one [batch, heads, length, width / heads] for each of queries, keys and values
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=2))
        dropout = self.dropout_p if self.training else 0.0
        found = scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.out(found.transpose(1, 2).flatten(2))

    def compute(self, x: Tensor) -> Tensor:
        """The block itself: [batch, length, width] → the same shape."""
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.down(gelu(self.up(self.norm2(x)), approximate="tanh")))

    def forward(self, x: Tensor) -> Tensor:
        """``compute``; with checkpointing, only ``x`` is kept, and the backward pass computes the rest again."""
        if self.checkpointing and torch.is_grad_enabled():
            return checkpoint(self.compute, x, use_reentrant=False)
        return self.compute(x)


class Head(nn.Module):
    """The last piece: a score for each token of the vocabulary."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width)
        self.output = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, width] → [batch, length, vocabulary]"""
        return self.output(self.norm(x))


class GPT(nn.Module):
    """A GPT of any size: ``GPT(GPT2_SMALL)`` has 124,439,808 parameters.

    Under ``with torch.device("meta")`` it takes no memory; ``to_empty`` and ``reset_parameters`` make it real.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = Embeddings(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.head = Head(config)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Give all parameters their first values, and let the two tables be one if the config says ``tied``.

        Weights are normal with a standard deviation of 0.02; those of the 2·layers that add to the sum of a block
        are smaller by √(2·layers), so that the sum does not grow with the depth. Biases are 0.
        """
        if self.config.tied:
            self.head.output.weight = self.embed.tokens.weight
        for name, module in self.named_modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif isinstance(module, nn.Linear | nn.Embedding):
                adds = name.endswith((".out", ".down"))
                nn.init.normal_(module.weight, std=0.02 / math.sqrt(2 * self.config.layers) if adds else 0.02)
                if isinstance(module, nn.Linear) and module.bias is not None:
                    nn.init.zeros_(module.bias)

    def pieces(self) -> list[nn.Module]:
        """Modules that give the logits when run in order: the embeddings, each block, the head.

        They share their parameters with this model, so a piece can be moved to a device of its own.

        Raises:
            ValueError: if the model is tied.
        """
        if self.config.tied:
            raise ValueError(
                "pieces() needs a GPTConfig with tied=False: with tied=True the first and the last piece share "
                "a tensor, which cannot be on two devices"
            )
        return [self.embed, *self.blocks, self.head]

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Scores of the next token, or their loss.

        Args:
            tokens: [batch, length], whole numbers below ``vocabulary``.
            targets: [batch, length], for each token the one that follows it.

        Returns:
            Logits [batch, length, vocabulary]; with targets, the mean cross-entropy in nats per token.
        """
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        if targets is None:
            return logits
        return cross_entropy(logits.flatten(0, 1), targets.flatten())
