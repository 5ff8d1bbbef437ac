"""A sampler that goes on in the middle of an epoch, batches that draw no random numbers, and settled buckets."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import cloudpickle
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import utils
from utils.training.resumable import ResumableSampler, endless_batches, settle_buckets

cloudpickle.register_pickle_by_value(sys.modules[__name__])

IMAGES = TensorDataset(torch.arange(40))


def sampler(rank: int = 0, ranks: int = 2) -> ResumableSampler:
    return ResumableSampler(IMAGES, num_replicas=ranks, rank=rank, seed=3)


def seen(of: ResumableSampler, batches: int) -> list[list[int]]:
    """What the model is trained on, with the sampler told of each batch."""
    found = []
    for (batch,) in itertools.islice(endless_batches(of, 4), batches):
        of.advance(len(batch))
        found.append(batch.tolist())
    return found


def test_without_a_break_it_is_a_distributed_sampler() -> None:
    for rank in range(2):
        plain = DistributedSampler(IMAGES, num_replicas=2, rank=rank, seed=3)
        expected = []
        for epoch in range(3):
            plain.set_epoch(epoch)
            expected += [batch.tolist() for (batch,) in DataLoader(IMAGES, 4, sampler=plain)]
        assert seen(sampler(rank), 15) == expected


@pytest.mark.parametrize("done", [0, 3, 5, 8, 12])
def test_it_goes_on_where_it_was(done: int) -> None:
    whole, first, second = seen(sampler(), 15), sampler(), sampler()
    before = seen(first, done)
    second.load_state_dict(first.state_dict())
    assert before + seen(second, 15 - done) == whole


def test_what_a_loader_takes_ahead_is_not_done() -> None:
    one = sampler()
    batches = iter(DataLoader(IMAGES, 4, sampler=one, num_workers=1))
    one.advance(len(next(batches)[0]))
    assert one.state_dict() == {"epoch": 0, "samples": 8}  # 4 on each of two ranks


def losses(settled: bool) -> list[list[float]]:
    """A training of six steps, and its last three done again by a fresh DDP from the same parameters."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    rank, found = dist.get_rank(), []
    start: Any = None
    for steps in (range(6), range(3, 6)):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.Tanh(), nn.Linear(30, 1))
        model = DistributedDataParallel(network)
        torch.manual_seed(rank)
        data = torch.randn(6, 8, 20)
        if settled:
            buffers = [b.clone() for b in model.buffers()]
            settle_buckets(model, data[0])
            assert all(map(torch.equal, buffers, model.buffers()))
            assert model.training and all(p.grad is None for p in model.parameters())
        if start is not None:
            network.load_state_dict(start)
        optimizer, values = torch.optim.SGD(model.parameters(), lr=0.1), []
        for step in steps:
            if step == 3:
                start = {name: value.clone() for name, value in network.state_dict().items()}
            loss = (model(data[step]) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            values.append(sum(p.double().sum().item() for p in model.parameters()))
        found.append(values)
    return found


def test_settled_buckets_round_as_they_did_before() -> None:
    def both() -> tuple[list[list[float]], list[list[float]]]:
        return losses(settled=True), losses(settled=False)

    for settled, unsettled in utils.launch(both, ranks=4, backend="gloo", show_output=False):
        assert settled[0][3:] == settled[1]
        assert unsettled[0][3:] == pytest.approx(unsettled[1], rel=1e-4)
        assert unsettled[0][3:] != unsettled[1]  # else nobody needs settle_buckets any more
