"""A Llama 3: what has become of the GPT block since 2019.

Sources: Touvron and others: LLaMA, 2023 (RMSNorm, SwiGLU, rotary positions, no biases); Grattafiori and others: The
Llama 3 Herd of Models, 2024, table 3 (fewer heads of keys and values than of queries, the sizes).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import cross_entropy, silu
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from utils.training.models.sizes import LlamaConfig


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs of values turned by an angle that grows with the token's place: [batch, heads, length, size]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Block(nn.Module):
    """Attention, then a gated network on each token alone; what each of them finds is added to its input."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        width, narrow = config.width, config.width // config.heads * config.kv_heads
        self.size, self.shared = width // config.heads, config.heads // config.kv_heads
        self.checkpointing = config.checkpointing
        self.norm1 = nn.RMSNorm(width, eps=1e-5)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, narrow, bias=False)
        self.v = nn.Linear(width, narrow, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.RMSNorm(width, eps=1e-5)
        self.gate = nn.Linear(width, config.hidden, bias=False)
        self.up = nn.Linear(width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, width, bias=False)

    def attention(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Each token collects from those before it and from itself: [batch, length, width] → the same shape."""
        q, k, v = (part(x).unflatten(2, (-1, self.size)).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        k, v = (part.repeat_interleave(self.shared, dim=1) for part in (k, v))
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)  # (context_parallel replaces it there)
        return self.out(found.transpose(1, 2).flatten(2))

    def compute(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The block itself: [batch, length, width] → the same shape."""
        x = x + self.attention(self.norm1(x), cos, sin)
        y = self.norm2(x)
        return x + self.down(silu(self.gate(y)) * self.up(y))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """``compute``; with checkpointing, the backward pass computes some of it again."""
        if self.checkpointing == "none" or not torch.is_grad_enabled():
            return self.compute(x, cos, sin)
        options: dict[str, Any] = {"context_fn": _selective} if self.checkpointing == "selective" else {}
        return checkpoint(self.compute, x, cos, sin, use_reentrant=False, **options)


def _selective() -> Any:
    """What is kept: the result of attention, and every second matrix product (torchtitan's rule of 2024)."""
    products = {False: 0, True: 0}  # in the forward pass, and while it is computed again

    def keep(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        name = operator.__name__
        if name.startswith("mm."):
            products[context.is_recompute] += 1
            kept = products[context.is_recompute] % 2 == 1
        else:
            kept = "attention" in name
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(keep)


class Llama(nn.Module):
    """A Llama of any size: ``Llama(LLAMA_8B)`` has 8,030,261,248 parameters.

    Under ``with torch.device("meta")`` it takes no memory; ``to_empty`` and ``reset_parameters`` make it real.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=1e-5)
        self.output = nn.Linear(config.width, config.vocabulary, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Give all parameters their first values, and let the two tables be one if the config says ``tied``."""
        if self.config.tied:
            self.output.weight = self.tokens.weight
        for module in self.modules():
            if isinstance(module, nn.RMSNorm):
                module.reset_parameters()
            elif isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def angles(self, length: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine by which each pair of values is turned: [length, size / 2], in the type of x."""
        pairs = self.config.width // self.config.heads // 2
        places = torch.arange(length, device=x.device, dtype=torch.float32)
        speeds = self.config.theta ** (-torch.arange(pairs, device=x.device, dtype=torch.float32) / pairs)
        angles = places[:, None] * speeds
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Scores of the next token, or their loss.

        Args:
            tokens: [batch, length], whole numbers below ``vocabulary``.
            targets: [batch, length], for each token the one that follows it.

        Returns:
            Logits [batch, length, vocabulary]; with targets, the mean cross-entropy in nats per token.
        """
        x = self.tokens(tokens)
        cos, sin = self.angles(tokens.shape[1], x)  # (a rank's x may be a part of the sequence)
        for block in self.blocks:
            x = block(x, cos, sin)
        logits = self.output(self.norm(x))
        if targets is None:
            return logits
        return cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
