"""What the lab on memory and precision says of its numbers: the official accountant's are those of a GPU's ledger."""

from __future__ import annotations

import pytest
import torch

import simgpu
from checks.engine import gpus
from checks.labs.memory_and_precision import accounting


@pytest.mark.parametrize("case", accounting.CASES, ids=lambda case: f"{case['type']}, {case['loss']}")
def test_an_account_is_what_the_ledger_of_a_gpu_counts(case):
    (account,) = accounting.OFFICIAL.functions()
    loss = accounting.LOSSES[case["loss"]]
    model, inputs = accounting.made(case)
    predicted = account(model, inputs, lambda: loss(model(inputs[0]), inputs[1]), case["state"])

    simgpu.cluster(gpus_per_node=1)
    x, classes = (one.to("simgpu:0") for one in inputs)
    ledger = [gpus.held()[0]]

    def grown():
        ledger.append(gpus.held()[0])
        return ledger[-1] - ledger[-2]

    gpus.put(model, torch.device("simgpu:0"))
    assert grown() == predicted["parameters"] + sum(gpus.rounded(one.nbytes) for one in model.buffers())
    result = loss(model(x), classes)
    assert grown() == predicted["activations"]
    result.backward()
    del result
    assert grown() == predicted["gradients"] - predicted["activations"]
    trainable = [one for one in model.parameters() if one.requires_grad]
    kept = [torch.zeros_like(one) for one in trainable for _ in range(case["state"])]
    assert grown() == predicted["optimizer state"], len(kept)
