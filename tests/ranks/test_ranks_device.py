"""Ranks and their devices, as far as a machine without GPUs can tell: CUDA's errors that stay, values that travel."""

from __future__ import annotations

import pytest

from utils.ranks import RankError, World, newer

ASSERT = "torch.AcceleratorError('CUDA error: device-side assert triggered')"
PRETEND = (
    "torch.cuda.is_initialized = lambda: True\nclass Stream:\n    def query(self): {}\n"
    "torch.cuda.current_stream = Stream\n"
)


def error_of(world, source):
    with pytest.raises(RankError) as caught:
        world.run_cell(source)
    return caught.value


@pytest.mark.parametrize(
    "raised",
    [ASSERT, "RuntimeError('CUDA error: an illegal memory access was encountered')"],
)
def test_an_error_of_cuda_that_stays_ends_the_world_with_a_sentence(raised):
    with World(2) as world:
        error = error_of(world, PRETEND.format("raise RuntimeError('CUDA error')") + f"if rank == 1: raise {raised}")
        assert "rank 1 failed" in str(error)
        assert "cannot use its GPU any more" in error.report and "this world has ended" in error.report
        assert "live on" not in error.report
        assert not world.open


@pytest.mark.parametrize(
    ("before", "raised"),
    [
        (PRETEND.format("return True"), "RuntimeError('CUDA error: invalid argument')"),
        (PRETEND.format("return True"), ASSERT),
        ("", "torch.OutOfMemoryError('CUDA out of memory')"),
        ("", "RuntimeError('a shape does not fit')"),
    ],
    ids=["argument", "no longer", "memory", "other"],
)
def test_after_other_errors_the_ranks_live_on(before, raised):
    with World(2) as world:
        error = error_of(world, f"{before}kept = rank\nraise {raised}")
        assert "The ranks live on with all their variables." in error.report
        assert world.run_cell("kept") == {0: "0", 1: "1"}


SIMULATED = (
    "import simgpu\nsimgpu.cluster(gpus_per_node=2)\n"
    "model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, bias=False)).to('simgpu:1')\n"
    "model[1].weight = model[0].weight\nmodel[0].bias.requires_grad_(False)\n"
)


@pytest.mark.skipif(newer.older_than(2, 10), reason="this torch has no devices written in Python")
def test_a_model_on_a_gpu_comes_as_a_model_on_the_cpu():
    """A simulated GPU stands in for the real one."""
    with World(1) as world:
        world.run_cell(SIMULATED + "sums = [p.detach().cpu().sum().item() for p in model.parameters()]")
        (model,), (sums,) = world.pull("model"), world.pull("sums")
    parameters = dict(model.named_parameters())
    assert list(parameters) == ["0.weight", "0.bias"]
    assert model[1].weight is model[0].weight
    assert {p.device.type for p in parameters.values()} == {"cpu"}
    assert [p.requires_grad for p in parameters.values()] == [True, False]
    assert [p.detach().sum().item() for p in parameters.values()] == sums
    model(__import__("torch").ones(1, 2)).sum().backward()
    assert model[0].weight.grad is not None
