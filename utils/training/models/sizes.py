"""Sizes of well-known models (no torch needed).

ResNet-50, whose gradient is the parcel that the course sends around again and again, the family of GPT-2, Llama 3,
and mixtures of experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BYTES_PER_FP32 = 4

RESNET50_PARAMETERS = 25_557_032
"""What torchvision's documentation lists as ``num_params`` of ResNet50_Weights.IMAGENET1K_V1."""

RESNET50_GRADIENT_BYTES = RESNET50_PARAMETERS * BYTES_PER_FP32
"""102,228,128 bytes: one gradient of ResNet-50 in fp32, 4 bytes for each parameter. About 102 MB."""


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a GPT, and how it is trained.

    Args:
        layers: number of blocks; each has an attention and a small network of two layers.
        heads: attention heads of a block; they share the width equally.
        width: length of the vector of one token.
        vocabulary: number of different tokens.
        context: longest sequence, in tokens.
        tied: True if the last layer uses the table of the embeddings as its weights, as GPT-2 does.
        dropout: probability that training sets a value to 0.
        checkpointing: True to keep only the input of each block for the backward pass, and to compute the rest again.
    """

    layers: int
    heads: int
    width: int
    vocabulary: int
    context: int
    tied: bool = True
    dropout: float = 0.0
    checkpointing: bool = False

    def __post_init__(self) -> None:
        if min(self.layers, self.heads, self.width, self.vocabulary, self.context) < 1:
            raise ValueError("layers, heads, width, vocabulary and context must be at least 1")
        if self.width % self.heads:
            raise ValueError(f"{self.heads} heads cannot share a width of {self.width} equally")


def gpt_parameter_count(config: GPTConfig) -> int:
    """Number of parameters: layers·(12·width² + 13·width), the two tables, and the last LayerNorm."""
    tables = config.vocabulary * (1 if config.tied else 2) + config.context
    return config.layers * (12 * config.width**2 + 13 * config.width) + (tables + 2) * config.width


GPT2_SMALL = GPTConfig(layers=12, heads=12, width=768, vocabulary=50257, context=1024)
"""The smallest GPT-2: 124,439,808 parameters. Radford and others: Language Models are Unsupervised Multitask Learners,
2019, table 2."""

GPT_1B = GPTConfig(layers=24, heads=16, width=2048, vocabulary=50257, context=2048)
"""1,315,723,264 parameters: layers, width and context of GPT-3 XL "1.3B". Brown and others: Language Models are
Few-Shot Learners, 2020, table 2.1."""

GPT_7B = GPTConfig(layers=32, heads=32, width=4096, vocabulary=50257, context=2048)
"""6,658,404,352 parameters: the shape of GPT-3 "6.7B" in the same table."""


@dataclass(frozen=True)
class LlamaConfig:
    """The shape of a Llama, and how it is trained.

    Args:
        layers: number of blocks; each has an attention and a gated network.
        heads: heads of the queries; they share the width equally.
        kv_heads: heads of keys and values, each of which serves ``heads / kv_heads`` heads of queries.
        width: length of the vector of one token.
        hidden: width inside the gated network.
        vocabulary: number of different tokens.
        tied: True if the last layer uses the table of the embeddings as its weights.
        theta: the base of the rotary angles, as large as the context is long.
        checkpointing: what backward does not keep but computes again: "none"; "full", all but each block's input;
            "selective", all but the attention's result and every second matrix product.
    """

    layers: int
    heads: int
    kv_heads: int
    width: int
    hidden: int
    vocabulary: int = 128_256
    tied: bool = False
    theta: float = 500_000.0
    checkpointing: Literal["none", "full", "selective"] = "none"

    def __post_init__(self) -> None:
        if min(self.layers, self.heads, self.kv_heads, self.width, self.hidden, self.vocabulary) < 1:
            raise ValueError("layers, heads, kv_heads, width, hidden and vocabulary must be at least 1")
        if self.width % (2 * self.heads) or self.heads % self.kv_heads:
            raise ValueError(
                f"{self.heads} heads must share a width of {self.width} equally, each an even number, and "
                f"{self.kv_heads} heads of keys and values must serve equally many of them"
            )
        if self.checkpointing not in ("none", "full", "selective"):
            raise ValueError(f'checkpointing must be "none", "full" or "selective", not {self.checkpointing!r}')


def llama_parameter_count(config: LlamaConfig) -> int:
    """Number of parameters: attention, gated network and two norms of each block, the tables, and the last norm."""
    width, narrow = config.width, config.width // config.heads * config.kv_heads
    block = 2 * width * (width + narrow) + 3 * width * config.hidden + 2 * width
    return config.layers * block + config.vocabulary * width * (1 if config.tied else 2) + width


# Grattafiori and others: The Llama 3 Herd of Models, 2024, table 3; for 1B: Meta: Llama 3.2 model card, 2024.
LLAMA_1B = LlamaConfig(layers=16, heads=32, kv_heads=8, width=2048, hidden=8192, tied=True)
"""Llama 3.2 1B: 1,235,814,400 parameters."""

LLAMA_8B = LlamaConfig(layers=32, heads=32, kv_heads=8, width=4096, hidden=14_336)
"""Llama 3.1 8B: 8,030,261,248 parameters."""

LLAMA_70B = LlamaConfig(layers=80, heads=64, kv_heads=8, width=8192, hidden=28_672)
"""Llama 3.1 70B: 70,553,706,496 parameters."""


@dataclass(frozen=True)
class MoEConfig:
    """The shape of a model with experts in its blocks. What is not told here is as in ``LlamaConfig``.

    Args:
        hidden: width inside one expert, a gated network.
        experts, chosen, shared: experts of a block; how many of them a token visits; how many more all tokens visit.
        size: length of a head's queries, keys and values.
        normed: True if queries and keys have norms.
        dense: how many of the first blocks have one network instead, and its hidden width.
        latent: DeepSeek's attention: lengths of compressed queries, of compressed keys with values, of rotary keys.
    """

    layers: int
    heads: int
    kv_heads: int
    width: int
    hidden: int
    experts: int
    chosen: int
    vocabulary: int
    shared: int = 0
    size: int = 128
    normed: bool = False
    dense: tuple[int, int] = (0, 0)
    latent: tuple[int, int, int] | None = None

    def parameters(self, active: bool = False) -> int:
        """All of them, or those that one token meets (both tables among them, and the bias of a corrected router)."""
        attention = 2 * self.width * (self.heads + self.kv_heads) * self.size + 2 * self.size * self.normed
        if self.latent:
            q, kv, turned = self.latent
            attention = self.width * (q + kv + turned + self.heads * self.size) + q + kv
            attention += self.heads * (q * (self.size + turned) + kv * 2 * self.size)
        met = (self.chosen if active else self.experts) + self.shared
        mixture = self.experts * (self.width + bool(self.shared)) + met * 3 * self.width * self.hidden
        blocks, hidden = self.dense
        networks = (self.layers - blocks) * mixture + blocks * 3 * self.width * hidden
        return networks + self.layers * (attention + 2 * self.width) + (2 * self.vocabulary + 1) * self.width


MIXTRAL_8X7B = MoEConfig(32, 32, 8, 4096, 14_336, 8, 2, 32_000)
"""46.7 billion parameters, a token meets 12.9. Jiang and others: Mixtral of Experts, 2024."""

QWEN3_30B = MoEConfig(48, 32, 4, 2048, 768, 128, 8, 151_936, normed=True)
"""30.5 billion, a token meets 3.3. Qwen team: Qwen3-30B-A3B, model card, 2025."""

QWEN3_235B = MoEConfig(94, 64, 4, 4096, 1536, 128, 8, 151_936, normed=True)
"""235 billion, a token meets 22. Qwen team: Qwen3-235B-A22B, model card, 2025."""

DEEPSEEK_V3 = MoEConfig(61, 128, 128, 7168, 2048, 256, 8, 129_280, 1, dense=(3, 18_432), latent=(1536, 512, 64))
"""671 billion, a token meets 37; without what predicts a second token. DeepSeek-AI: DeepSeek-V3, 2024, section 4.2."""
