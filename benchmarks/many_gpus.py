"""Training steps on several GPUs, for ``simgpu_vs_published``: torch's own DistributedDataParallel and FSDP2.

One rank of all is simulated (``simgpu.one_of``): the others do the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from published_many import ManyGPUs
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import simgpu
from simgpu.hardware import GPU
from simgpu.hardware import gpu as kind_of_gpu
from utils.training import models
from utils.training.models import LLAMA_8B, LLAMA_70B, GPTConfig, LlamaConfig

RESNETS = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3), "resnet152": (3, 8, 36, 3)}
LENGTH = 2048
"""Tokens of a sequence."""
MPTS = {
    "mpt 125m": (768, 12, 12),
    "mpt 350m": (1024, 16, 24),
    "mpt 760m": (1536, 12, 24),
    "mpt 1b": (2048, 16, 24),
    "mpt 3b": (2560, 20, 32),
    "mpt 7b": (4096, 32, 32),
    "mpt 13b": (5120, 40, 40),
}
"""Width, heads, layers. (Ours has learned positions where theirs adds biases to attention: nearly the same work.)"""
LLAMAS = {
    "llama3 8b": LLAMA_8B,
    "llama3 70b": LLAMA_70B,
    "llama2 13b": LlamaConfig(40, 40, 40, 5120, 13_824, vocabulary=32_000),
    "llama2 70b": LlamaConfig(80, 64, 8, 8192, 28_672, vocabulary=32_000),
}


def length_of(row: ManyGPUs) -> int:
    """Tokens of a sequence; an image counts as one."""
    if row.model in RESNETS:
        return 1
    return LENGTH if row.model in MPTS else 4096 if row.model.startswith("llama2") else 8192


def _images(row: ManyGPUs) -> Callable[[], None]:
    layout = torch.channels_last if row.channels_last else torch.contiguous_format
    with torch.device("simgpu"):
        model: nn.Module = models.ResNet50(blocks=RESNETS[row.model]).to(memory_format=layout)
        images = torch.zeros(row.batch, 3, 224, 224).to(memory_format=layout)
        labels = torch.zeros(row.batch, dtype=torch.long)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    mixed: Any = torch.autocast("simgpu", torch.float16) if row.precision == "amp" else contextlib.nullcontext()

    def step() -> None:
        optimizer.zero_grad()
        with mixed:
            loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


class NormByHand(nn.RMSNorm):
    """As torch had it until 2.8: several small kernels, in fp32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same shape."""
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (normed * self.weight).to(x.dtype)


def _language_model(row: ManyGPUs) -> nn.Module:
    if row.model in LLAMAS:
        model = models.Llama(replace(LLAMAS[row.model], checkpointing=row.checkpointing))
        for module in model.modules():
            if isinstance(module, nn.RMSNorm) and row.year < 2025:
                module.__class__ = NormByHand
        return model
    width, heads, layers = MPTS[row.model]
    return models.GPT(GPTConfig(layers, heads, width, vocabulary=50_368, context=LENGTH))


def _sharded(row: ManyGPUs) -> Callable[[], None]:
    with torch.device("meta"):
        model = _language_model(row)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device="simgpu")
    with torch.device("simgpu"):
        tokens = torch.zeros(row.batch, length_of(row), dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(row.times):
            model(tokens, tokens).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def seconds_of_a_step(row: ManyGPUs, samples_per_s: float) -> float:
    """From the images or tokens of one GPU in a second."""
    return row.times * row.batch * length_of(row) / samples_per_s


def network_options(network: tuple[float, int] | None, gpu: str | GPU) -> dict[str, Any]:
    """For a cluster: Gbit/s of each network card, and how many a node has; none of that: what the GPU's kind says."""
    if network is None:
        return {}
    gigabits, cards = network
    return {"nics_per_node": cards, "network": replace(kind_of_gpu(gpu).network, bytes_per_s=gigabits * 1e9 / 8)}


def simulate_many(row: ManyGPUs) -> tuple[float, float]:
    """Seconds of one step, and what torch's caching allocator reserves at most, in GiB."""
    options = network_options(row.network, row.gpu) | {"memory": 200 * 2**30}  # what does not fit has a time, too
    with (
        simgpu.one_of(row.nodes * row.per_node, row.gpu, row.nodes, **options),
        simgpu.profile() as whole,
    ):
        step = _images(row) if row.model in RESNETS else _sharded(row)
        step()  # buckets are made anew, and the optimizer's state comes, with the first one
        with simgpu.profile() as prof:
            step()
    return prof.elapsed, whole.peak_reserved(0, expandable=True) / 2**30
