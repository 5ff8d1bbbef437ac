"""The network of the checks on DistributedDataParallel."""

from __future__ import annotations

import sys

import torch

from checks.labs.ddp_and_bucketing.training import Network


def test_the_network_has_what_is_easily_forgotten():
    network = Network(0)
    names, buffers = list(network.named_parameters(remove_duplicate=False)), dict(network.named_buffers())
    assert len(names) == len(list(network.parameters())) + 1, "a tied weight"
    assert any(not parameter.requires_grad for parameter in network.parameters())
    assert set(buffers) - set(network.state_dict()) == {"mask"}
    assert {buffer.dtype for buffer in buffers.values()} == {torch.float64, torch.int64}


def test_the_graph_of_a_loss_is_too_deep_and_wide_for_a_careless_walk():
    node, deep = Network(3).loss(1, tangled=True).grad_fn, 0
    while len({before for before, _ in node.next_functions}) == 2 and "Add" in node.name():
        [node] = {halves.next_functions[0][0] for halves, _ in node.next_functions}  # two ways to one node
        deep += 2
    assert deep > sys.getrecursionlimit()
