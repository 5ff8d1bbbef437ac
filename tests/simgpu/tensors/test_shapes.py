"""Shapes only (``numbers=False``): the same times, memory, shapes and mistakes; a sentence where numbers are needed."""

import math

import pytest
import torch
from simgpu_support import MODELS, built, happened, ones
from torch import nn
from torch.nn.functional import cross_entropy

import simgpu
from utils.training.models import GPT, GPT_7B, GPTConfig

pytestmark = pytest.mark.usefixtures("three_gpus")


NEEDS_NUMBERS = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x[0]),
    "int": lambda x: int(x[0]),
    "bool": lambda x: bool(x[0] > 0),
    "if": lambda x: 1 if x.sum() > 0 else 2,
    "list": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "to cpu": lambda x: x.to("cpu"),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "masked_select": lambda x: torch.masked_select(x, x > 0),
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x),
    "format": lambda x: f"{x.sum():.3f}",
    "copy into a cpu tensor": lambda x: torch.ones(3).copy_(x),
    "save": lambda x: torch.save(x, "/dev/null"),
    "bincount": lambda x: torch.bincount(x.long()),
    "repeat_interleave": lambda x: torch.repeat_interleave(x.long()),
}


@pytest.mark.parametrize("name", NEEDS_NUMBERS)
def test_without_numbers_whatever_needs_them_says_why(name):
    simgpu.cluster(gpus_per_node=2, numbers=False)
    x = ones(3, gpu=1)
    with pytest.raises(RuntimeError) as error:
        NEEDS_NUMBERS[name](x)
    words = str(error.value)
    assert "only shapes (numbers=False)" in words, words
    assert len(words.splitlines()) == 1
    assert (x + 1).shape == (3,)


def test_without_numbers_a_tensor_shows_its_shape():
    simgpu.cluster(gpus_per_node=2, numbers=False)
    x = ones(3, 4, gpu=1)
    assert repr(x) == "tensor(..., size=(3, 4), dtype=torch.float32, device='simgpu:1')"
    assert str(x) == f"{x}" == repr(x)
    assert "size=(4,)" in repr(nn.Linear(3, 4).to("simgpu:0").bias)
    assert repr(simgpu.current()).endswith("shapes only>")


def test_without_numbers_the_same_mistakes_are_found():
    simgpu.cluster(gpus_per_node=2, numbers=False)
    with pytest.raises(RuntimeError, match="same device"):
        ones(3, gpu=0) + ones(3, gpu=1)
    with pytest.raises(RuntimeError, match="same device"):
        ones(3, gpu=0) + torch.ones(3)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            ones(2, 3, gpu=1) @ ones(2, 3, gpu=1)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(2**40, device="simgpu:1")


def _measure(numbers, make, batch, gpu):
    simgpu.cluster(gpus_per_node=2, numbers=numbers)
    torch.manual_seed(0)
    home = f"simgpu:{gpu}"
    model, batch = make().to(home), batch.to(home)
    targets = torch.zeros(len(batch), dtype=torch.long, device=home)
    optimizer = torch.optim.AdamW(model.parameters())
    shapes, profiles = [], []
    for _ in range(2):
        with simgpu.profile() as prof:
            optimizer.zero_grad()
            out = model(batch)
            loss = cross_entropy(out, targets)
            loss.backward()
            optimizer.step()
        shapes.append(
            [(t.shape, t.stride(), t.dtype, t.device) for t in (out, loss, *(p.grad for p in model.parameters()))]
        )
        profiles.append(
            (
                prof.elapsed,
                happened(prof),
                prof.peak_memory(gpu),
                prof.memory_at_peak(gpu),
                torch.simgpu.memory_allocated(gpu),
            )
        )
    return shapes, profiles


@pytest.mark.parametrize("name", MODELS)
def test_shapes_alone_give_the_same_time_memory_and_shapes(name):
    batch = MODELS[name][1]
    with_numbers = _measure(True, lambda: built(name), batch, 1)
    assert _measure(False, lambda: built(name), batch, 1) == with_numbers
    # Another batch size in the same process: what is remembered of one shape must not answer for another.
    assert _measure(False, lambda: built(name), batch[:2], 1) == _measure(True, lambda: built(name), batch[:2], 1)


def views_broadcasts_and_types():
    """Shapes, strides, types, places and versions of what operators give, and the peak of memory."""
    results = []
    with torch.device("simgpu:1"):
        x, y = torch.ones(4, 6), torch.ones(4, 6, dtype=torch.int64)
        for _ in range(2):  # the second time the answers are remembered
            results += [
                x + y,
                x.t() + y.t(),
                x[:, ::2] * 2,
                x[1:] + x[:1],
                x.half() + x,
                y / 2,
                y // 2,
                y + True,
                y + 1.5,
            ]
            results += [x.sum(0), x.sum(0, keepdim=True), x.max(1)[1], x.argmax(), x.cumsum(0), x.t().contiguous()]
            results += [x.expand(3, 4, 6) + 1, x.add_(1), x.t_(), x.t_(), torch.cat([x, x[:2]]), *x.split([1, 3])]
            results += [x.softmax(0), x.view(2, 12) @ x.view(12, 2), x[None] @ x.t(), torch.where(x > 0, x, 0.0)]
            results += [torch.ones(3), torch.arange(5), torch.randperm(4), y.neg(), x.half().neg(), y.int().neg()]
            results += [x.t().clone(), torch.empty_like(x.t()), x.new_zeros(2), x.to(torch.half)]
    kinds = [(tuple(t.shape), t.stride(), t.dtype, t.device, t._version) for t in results]
    return kinds, torch.simgpu.max_memory_allocated(1)


def test_shapes_alone_are_right_for_views_broadcasts_and_types():
    simgpu.cluster(gpus_per_node=2)
    expected = views_broadcasts_and_types()
    simgpu.cluster(gpus_per_node=2, numbers=False)
    assert views_broadcasts_and_types() == expected


def test_remembered_costs_are_those_of_the_gpu_and_of_the_settings():
    def seconds(gpu, precision):
        simgpu.cluster(gpus_per_node=1, gpu=gpu, numbers=False)
        torch.set_float32_matmul_precision(precision)
        try:
            a = torch.empty(4096, 4096, device="simgpu:0")
            with simgpu.profile() as prof:
                a @ a
            return prof.events[0].seconds
        finally:
            torch.set_float32_matmul_precision("highest")

    fp32, tf32, other, again = (
        seconds(*case) for case in (("A100", "highest"), ("A100", "high"), ("V100", "highest"), ("A100", "highest"))
    )
    assert tf32 < fp32 / 3 and other > fp32 and again == fp32


def test_seven_billion_parameters_do_not_fit_with_adam_and_do_in_bfloat16():
    simgpu.cluster(gpus_per_node=1, gpu="H100", numbers=False)
    with torch.device("simgpu:0"):
        model = GPT(GPT_7B)
    assert torch.simgpu.memory_allocated(0) == pytest.approx(4 * 6_658_404_352, rel=1e-4)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.zeros(1, 512, dtype=torch.long, device="simgpu:0")
    model(tokens, tokens).backward()
    with pytest.raises(torch.OutOfMemoryError):
        optimizer.step()
    del optimizer
    model.zero_grad()
    model.bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(tokens, tokens).backward()
    optimizer.step()
    assert torch.simgpu.memory_allocated(0) < 30e9


def test_checkpointing_costs_time_and_saves_memory():
    results = {}
    for checkpointing in (False, True):
        simgpu.cluster(gpus_per_node=1, numbers=False, launch_s=0)
        config = GPTConfig(layers=4, heads=8, width=512, vocabulary=1000, context=512, checkpointing=checkpointing)
        with torch.device("simgpu:0"):
            model, tokens = GPT(config), torch.zeros(8, 512, dtype=torch.long)
        with simgpu.profile() as prof:
            model(tokens, tokens).backward()
        results[checkpointing] = prof.elapsed, prof.memory_at_peak(0)["activations"]
    assert 1.15 < results[True][0] / results[False][0] < 1.4, "one more forward of the blocks"
    assert results[True][1] < 0.7 * results[False][1]
    assert math.isfinite(results[True][0])


@pytest.mark.parametrize("home", ["cpu", "simgpu:0"])
def test_rows_and_targets_pick_from_shapes_alone(home: str) -> None:
    simgpu.cluster(gpus_per_node=2, numbers=False)
    logits = torch.randn(4, 5, device="simgpu:0", requires_grad=True)
    rows, targets = torch.arange(4, device=home), torch.randint(5, (4,), device=home)
    picked = logits.log_softmax(-1)[rows, targets]
    (-picked.mean()).backward()
    assert picked.shape == (4,) and logits.grad.shape == (4, 5)
    with pytest.raises(RuntimeError, match="numbers=True"):
        logits[logits > 0]  # how many are there? nobody knows
