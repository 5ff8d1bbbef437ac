"""What the lab on buckets says about them, tried out."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from checks.labs.buckets_and_overlap import bucketing
from checks.labs.ddp_and_bucketing.training import BOTH, Network

[BUCKETED] = bucketing.OFFICIAL.functions()


@pytest.mark.parametrize("cap", [1, 40, 200, 500, 1500, 10**6])
@pytest.mark.parametrize("seed", range(4))
def test_the_buckets_are_those_of_torch(seed, cap):
    model = Network(seed, branches=4, types=BOTH)
    parameters = [parameter for parameter in reversed(list(model.parameters())) if parameter.requires_grad]
    # (With indices, torch keeps the given order, as it does when it rebuilds its buckets.)
    indices, _ = dist._compute_bucket_assignment_by_size(parameters, [cap], [], list(range(len(parameters))))
    torchs = [[id(parameters[index]) for index in bucket] for bucket in indices]
    assert sorted([id(one) for one in bucket] for bucket in BUCKETED(model, cap).buckets) == sorted(torchs)


def test_the_example_in_the_lab_follows_the_rule(monkeypatch):
    sizes = {"a": 40, "b": 200, "c": 60, "d": 16, "e": 40}
    model = torch.nn.Module()
    for name, size in sizes.items():
        kind = torch.float64 if name == "d" else torch.float32
        model.register_parameter(name, torch.nn.Parameter(torch.zeros(size // kind.itemsize, dtype=kind)))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    ddp, gone = BUCKETED(model, 100), []
    assert [[names[id(one)] for one in bucket] for bucket in ddp.buckets] == [["e", "c"], ["d"], ["b"], ["a"]]
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: gone.append(len(gone)))
    seen = {}
    for name in "ecbda":
        parameter = getattr(model, name)
        parameter.grad = torch.zeros_like(parameter)
        before = len(gone)
        ddp.ready(parameter)
        seen[name] = gone[before:]
    assert seen == {"e": [], "c": [0], "b": [], "d": [1, 2], "a": [3]}
