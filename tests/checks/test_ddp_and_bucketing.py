"""What the lab on DistributedDataParallel says about buckets, tried out, and the models of its checks."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.distributed as dist

from checks.ddp_and_bucketing import bucketing, networks
from checks.ddp_and_bucketing.training import BOTH

[BUCKETED] = bucketing.OFFICIAL.functions()


# ---------------------------------------------------------------------- buckets
@pytest.mark.parametrize("cap", [1, 40, 200, 500, 1500, 10**6])
@pytest.mark.parametrize("seed", range(4))
def test_the_buckets_are_those_of_torch(seed, cap):
    model = networks.model(seed, branches=4, types=BOTH)
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


# ---------------------------------------------------------------------- models
@pytest.mark.parametrize("seed", range(4))
def test_a_model_has_what_is_easily_forgotten(seed):
    model = networks.model(seed)
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    buffers = dict(model.named_buffers())
    assert len(names) == len(list(model.parameters())) + 1, "a tied weight"
    assert any(not parameter.requires_grad for parameter in model.parameters())
    assert set(buffers) - set(model.state_dict()) == {"scale.mask"}
    assert {buffer.dtype for buffer in buffers.values()} == {torch.float64, torch.int64, torch.bool}


def test_a_twin_has_the_same_gradients_and_nobodys_hooks():
    model = networks.model(1)
    model.stem.weight.register_hook(lambda gradient: gradient * 2)
    twin = networks.twin(model)
    for one in (model, twin):
        networks.loss(one, 3).backward()
    assert torch.equal(model.stem.weight.grad, twin.stem.weight.grad * 2)
    assert torch.equal(model.head.bias.grad, twin.head.bias.grad)


def test_a_tangled_loss_is_the_same_and_too_deep_and_wide_for_a_careless_walk():
    loss = networks.loss(networks.model(3), 1)
    tangled = networks.tangled(loss)
    assert torch.equal(loss, tangled)
    node, deep = tangled.grad_fn, 0
    while "Clone" in node.name():
        node, deep = node.next_functions[0][0], deep + 1
    assert deep > sys.getrecursionlimit()
    halves = [before for before, _ in node.next_functions]
    assert len(halves) == 2 and len({before.next_functions[0][0] for before in halves}) == 1, "two ways to one node"
