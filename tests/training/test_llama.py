"""The Llama of the course: published sizes, what its parts promise, and checkpointing that changes no number."""

import math
from dataclasses import replace

import pytest
import torch
from model_shapes import llama_parameters
from torch.testing import assert_close

import simgpu
from utils.training import models
from utils.training.models import (
    LLAMA_1B,
    LLAMA_8B,
    LLAMA_70B,
    Llama,
    LlamaConfig,
    llama_parameter_count,
)

pytestmark = pytest.mark.numeric

TINY = LlamaConfig(layers=2, heads=4, kv_heads=2, width=32, hidden=48, vocabulary=11)


def _model(config: LlamaConfig = TINY) -> Llama:
    torch.manual_seed(0)
    return Llama(config)


def _tokens(batch: int = 3, length: int = 8) -> torch.Tensor:
    return torch.randint(11, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("config", "count"), [(LLAMA_1B, 1_235_814_400), (LLAMA_8B, 8_030_261_248), (LLAMA_70B, 70_553_706_496)]
)
def test_sizes_are_the_published_ones(config, count):
    assert llama_parameter_count(config) == count


@pytest.mark.parametrize("config", [TINY, replace(TINY, tied=True), LLAMA_1B, LLAMA_70B])
def test_the_network_has_the_parameters_that_were_counted(config):
    with torch.device("meta"):
        found = [(name, tuple(parameter.shape)) for name, parameter in Llama(config).named_parameters()]
    assert found == list(llama_parameters(config))
    assert sum(math.prod(shape) for _, shape in found) == llama_parameter_count(config)


def test_a_shape_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="share a width of 30"):
        replace(TINY, width=30)
    with pytest.raises(ValueError, match="3 heads of keys"):
        replace(TINY, kv_heads=3)
    with pytest.raises(ValueError, match="not 'some'"):
        replace(TINY, checkpointing="some")


def test_a_token_sees_only_those_before_it():
    model, tokens = _model(), _tokens()
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 11
    before, after = model(tokens), model(changed)
    assert_close(before[:, :5], after[:, :5])
    assert (before[:, 5:] - after[:, 5:]).abs().amax(dim=(0, 2)).min() > 1e-6


@pytest.mark.parametrize("checkpointing", ["full", "selective"])
def test_checkpointing_changes_no_gradient(checkpointing):
    gradients = []
    for kind in ("none", checkpointing):
        model, tokens = _model(replace(TINY, checkpointing=kind)), _tokens()
        model(tokens, tokens).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert_close(gradients[0], gradients[1], rtol=0, atol=0)


def test_checkpointing_keeps_less_and_computes_more():
    held, flops = {}, {}
    for kind in ("none", "selective", "full"):
        simgpu.cluster(numbers=False)
        with torch.device("simgpu"):
            model = Llama(replace(LLAMA_1B, layers=2, checkpointing=kind))
            tokens = torch.zeros(1, 4096, dtype=torch.long)
        with simgpu.profile() as prof:
            model(tokens, tokens).backward()
        held[kind] = prof.peak_memory(0)
        flops[kind] = sum(event.flops for event in prof.events)
    assert held["full"] < held["selective"] < held["none"]
    assert flops["none"] < flops["selective"] < flops["full"]


@pytest.mark.parametrize(
    ("config", "total", "active"),
    [
        (models.MIXTRAL_8X7B, 46_702_792_704, 12.9),
        (models.QWEN3_30B, 30_532_122_624, 3.3),
        (models.QWEN3_235B, 235_093_634_560, 22),
        (models.DEEPSEEK_V3, 671_026_419_200, 37),
    ],
)
def test_a_mixture_of_experts_has_as_many_parameters_as_published(config, total, active):
    assert config.parameters() == total
    assert config.parameters(active=True) / 1e9 == pytest.approx(active, rel=0.02)
