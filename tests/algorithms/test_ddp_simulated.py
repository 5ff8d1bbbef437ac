"""DDP on simulated GPUs: the numbers of one device, collectives counted, the same each time, and what buckets cost."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from utils import simgpu
from utils.algorithms.ddp import MB
from utils.algorithms.ddp_simulated import SimulatedDDP
from utils.hardware.links import INFINIBAND_NDR, Link, ring_all_reduce
from utils.training.models import GPT, GPTConfig

pytestmark = pytest.mark.numeric

SMALL = 1e-5  # MiB: every parameter has a bucket of its own
MANY, SLOW_START = 12, Link("slow to start", alpha_s=1e-3, bytes_per_s=25e9, year=0, source="a test")


def mean_square(output: Tensor) -> Tensor:
    return output.square().mean()


def layers(width: int = 16, count: int = 4) -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(count)))


def reduced(profile: simgpu.Profile) -> list[simgpu.TraceEvent]:
    """The all-reduces of a profile, in the order in which they began."""
    return sorted((event for event in profile.events if event.name == "all-reduce"), key=lambda event: event.start)


@pytest.mark.parametrize("gpus", [1, 3, 4])
@pytest.mark.parametrize("cap", [SMALL, 0.003, 25.0])
def test_the_gradients_are_those_of_one_device_on_the_whole_batch(gpus: int, cap: float) -> None:
    simgpu.cluster(gpus_per_node=gpus, gpu="toy", gil=False)
    ddp = SimulatedDDP(layers, bucket_cap_mb=cap)
    model = layers()
    model.load_state_dict({name: value.cpu() for name, value in ddp.replicas[0].module.state_dict().items()})
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9) for one in [*ddp.replicas, model]]
    for step in range(4):
        batch = torch.randn(8 * gpus, 16, generator=torch.Generator().manual_seed(step))
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=step % 2 == 0)
        ddp.step([part.to(f"simgpu:{i}") for i, part in enumerate(batch.chunk(gpus))], mean_square)
        mean_square(model(batch)).backward()
        replicas = [[one.grad.cpu() for one in replica.parameters()] for replica in ddp.replicas]
        for mine in replicas[1:]:
            assert all(torch.equal(a, b) for a, b in zip(mine, replicas[0], strict=True))
        for mine, right in zip(replicas[0], model.parameters(), strict=True):
            torch.testing.assert_close(mine, right.grad, rtol=1e-4, atol=1e-6)  # float32, sums in another order
        for optimizer in optimizers:
            optimizer.step()


def test_one_all_reduce_for_each_bucket_and_its_bytes() -> None:
    for cap, buckets in ((SMALL, 8), (0.001, 4), (25.0, 1)):
        simgpu.cluster(gpus_per_node=4, gpu="toy", gil=False)
        ddp = SimulatedDDP(layers, bucket_cap_mb=cap)
        assert len(ddp.replicas[0].buckets) == buckets
        for _ in range(2):
            with simgpu.profile() as profile:
                ddp.step([torch.ones(2, 16, device=f"simgpu:{i}") for i in range(4)], mean_square)
            sent = [call.nbytes for call in reduced(profile)]
            assert sent == [bucket.nbytes for bucket in ddp.replicas[0].buckets]
            assert sum(sent) == 4 * (16 * 16 + 16) * 4


def measured(cap: float, network: Link = INFINIBAND_NDR, make: Any = None) -> tuple[float, list[Any], int]:
    """A step of a model on two nodes with two GPUs each: its time, its all-reduces, its number of buckets."""
    simgpu.cluster(nodes=2, gpus_per_node=2, gpu="H100", numbers=False, gil=False, network=network)
    ddp = SimulatedDDP(make or (lambda: layers(2048, MANY)), bucket_cap_mb=cap)
    batches = [torch.randn(4096, 2048, device=f"simgpu:{i}") for i in range(4)]
    with simgpu.profile() as profile:
        ddp.step(batches, mean_square)
    return profile.elapsed, reduced(profile), len(ddp.replicas[0].buckets)


def test_the_same_step_takes_the_same_time_each_time() -> None:
    one, other = measured(25.0), measured(25.0)
    assert one[0] == other[0]
    assert [(call.start, call.end) for call in one[1]] == [(call.start, call.end) for call in other[1]]


def test_the_first_all_reduce_begins_before_the_last_gradient_is_there() -> None:
    simgpu.cluster(nodes=2, gpus_per_node=2, gpu="H100", numbers=False, gil=False)
    ddp = SimulatedDDP(lambda: layers(2048, MANY), bucket_cap_mb=25.0)
    with simgpu.profile() as profile:
        ddp.step([torch.randn(4096, 2048, device=f"simgpu:{i}") for i in range(4)], mean_square)
    computed = max(event.end for event in profile.events if event.phase == "backward" and event.flops)
    calls = reduced(profile)
    assert calls[0].start < computed < calls[-1].end
    assert calls == sorted(calls, key=lambda call: call.start)
    assert all(a.end <= b.start + 1e-12 for a, b in itertools.pairwise(calls))  # one after the other


def test_too_many_buckets_and_too_few_are_slower_than_some() -> None:
    times = {cap: measured(cap, SLOW_START)[0] for cap in (SMALL, 20.0, 50.0, float("inf"))}
    assert measured(SMALL, SLOW_START)[2] == 2 * MANY and measured(float("inf"), SLOW_START)[2] == 1
    best = min(times.values())
    assert times[SMALL] > best + 5 * ring_all_reduce(0, 4, SLOW_START)  # latency, many times
    assert times[float("inf")] > best  # nothing is hidden
    quick = {cap: measured(cap)[0] for cap in (16.0, float("inf"))}
    assert quick[16.0] < quick[float("inf")]


def test_a_gpt_overlaps_too() -> None:
    config = GPTConfig(layers=4, heads=8, width=512, vocabulary=1000, context=64)
    times = []
    for cap in (4.0, float("inf")):
        simgpu.cluster(nodes=4, gpus_per_node=1, gpu="V100", numbers=False, gil=False)
        ddp = SimulatedDDP(lambda: GPT(config), bucket_cap_mb=cap)
        tokens = [torch.zeros(16, 64, dtype=torch.long, device=f"simgpu:{i}") for i in range(4)]
        with simgpu.profile() as profile:
            ddp.step(tokens, mean_square)
        times.append(profile.elapsed)
        assert all(bucket.nbytes >= 4 * MB for bucket in ddp.replicas[0].buckets[:-1] if cap == 4.0)
    assert times[0] < times[1]


class Lazy(nn.Module):
    """One of its two layers is left out, on one GPU or on all."""

    def __init__(self, on: set[int]) -> None:
        super().__init__()
        self.a, self.b, self.on = nn.Linear(4, 4), nn.Linear(4, 4), on

    def forward(self, x: Tensor) -> Tensor:
        return self.b(x) if x.device.index in self.on else self.b(self.a(x))


@pytest.mark.parametrize("on", [{0, 1, 2}, {1}, {2}])
def test_a_parameter_without_a_gradient_is_a_clear_error(on: set[int]) -> None:
    simgpu.cluster(gpus_per_node=3, gpu="toy", gil=False)
    ddp = SimulatedDDP(lambda: Lazy(on), bucket_cap_mb=SMALL)
    batches = [torch.ones(2, 4, device=f"simgpu:{i}") for i in range(3)]
    with pytest.raises(
        RuntimeError, match=r"2 of 4 parameters got no gradient .*: a\.bias, a\.weight\.|real ranks would"
    ) as caught:
        ddp.step(batches, mean_square)
    assert "\n" not in str(caught.value)


def test_a_new_cluster_after_an_error_works() -> None:
    simgpu.cluster(gpus_per_node=2, gpu="toy", gil=False)
    ddp = SimulatedDDP(lambda: Lazy({1}), bucket_cap_mb=SMALL)
    with pytest.raises(RuntimeError):
        ddp.step([torch.ones(2, 4, device=f"simgpu:{i}") for i in range(2)], mean_square)
    simgpu.cluster(gpus_per_node=2, gpu="toy", gil=False)
    ddp = SimulatedDDP(lambda: Lazy(set()), bucket_cap_mb=SMALL)
    ddp.step([torch.ones(2, 4, device=f"simgpu:{i}") for i in range(2)], mean_square)
    model = Lazy(set())
    model.load_state_dict({name: value.cpu() for name, value in ddp.replicas[0].module.state_dict().items()})
    mean_square(model(torch.ones(4, 4))).backward()
    for mine, right in zip(ddp.replicas[1].parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.cpu(), right.grad)


def test_replicas_begin_equal_and_each_is_on_its_gpu() -> None:
    simgpu.cluster(gpus_per_node=3, gpu="toy", gil=False)
    ddp = SimulatedDDP(layers)
    states = [copy.deepcopy(replica.state_dict()) for replica in ddp.replicas]
    for i, state in enumerate(states):
        assert {value.device for value in state.values()} == {torch.device("simgpu", i)}
        assert all(torch.equal(value.cpu(), states[0][name].cpu()) for name, value in state.items())


def test_the_same_models_wrapped_anew_have_other_buckets_and_the_same_gradients() -> None:
    simgpu.cluster(gpus_per_node=3, gpu="toy", gil=False)
    ddp = SimulatedDDP(layers, bucket_cap_mb=25.0)
    batches = [torch.full((2, 16), 1.0 + i, device=f"simgpu:{i}") for i in range(3)]
    found = []
    for cap, buckets in ((25.0, 1), (SMALL, 8), (0.001, 4)):
        ddp.wrap(cap)
        assert len(ddp.replicas[0].buckets) == buckets
        ddp.step(batches, mean_square)  # no zero_grad: what was there before is gone
        found.append([[one.grad.cpu().clone() for one in model.parameters()] for model in ddp.models])
    for per_gpu in itertools.chain(*found):
        for mine, right in zip(per_gpu, found[0][0], strict=True):
            torch.testing.assert_close(mine, right, rtol=1e-5, atol=1e-7)


def test_a_step_that_failed_leaves_nothing_in_the_next_wrapping() -> None:
    simgpu.cluster(gpus_per_node=2, gpu="toy", gil=False)
    ddp = SimulatedDDP(lambda: Lazy({1}), bucket_cap_mb=SMALL)
    batches = [torch.ones(2, 4, device=f"simgpu:{i}") for i in range(2)]
    with pytest.raises(RuntimeError):
        ddp.step(batches, mean_square)
    for model in ddp.models:
        model.on = set()
    ddp.wrap(SMALL)
    ddp.step(batches, mean_square)
    whole = Lazy(set())
    whole.load_state_dict({name: value.cpu() for name, value in ddp.models[0].state_dict().items()})
    mean_square(whole(torch.ones(4, 4))).backward()
    for mine, right in zip(ddp.models[1].parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.cpu(), right.grad)
