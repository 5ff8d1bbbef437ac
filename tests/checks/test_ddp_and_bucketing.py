"""The models of the checks on DistributedDataParallel."""

from __future__ import annotations

import sys

import pytest
import torch

from checks.labs.ddp_and_bucketing import networks


@pytest.mark.parametrize("seed", range(4))
def test_a_model_has_what_is_easily_forgotten(seed):
    model = networks.model(seed)
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    buffers = dict(model.named_buffers())
    assert len(names) == len(list(model.parameters())) + 1, "a tied weight"
    assert any(not parameter.requires_grad for parameter in model.parameters())
    assert set(buffers) - set(model.state_dict()) == {"scale.mask"}
    assert {buffer.dtype for buffer in buffers.values()} == {torch.float64, torch.int64, torch.bool}


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
