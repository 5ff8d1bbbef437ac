"""What the lab on choosing has stored of simulations, and what its text says, run again."""

from __future__ import annotations

import pytest

from checks.labs.choosing import planning, simulated
from checks.labs.choosing.simulated import BATCH, GPUS, NETWORKS, ROOM
from lessons.training.layouts import Plan, simulate
from utils.training.models import LLAMA_70B

SMALL = [("InfiniBand", plan) for plan in (Plan(shard=64), Plan(replicate=2, shard=32), Plan(shard=32, context=2))]
LARGE = [("Ethernet", Plan(tensor=8, pipeline=8, saved="selective"))]


@pytest.mark.parametrize(
    ("network", "plan"), [*SMALL, *(pytest.param(*one, marks=pytest.mark.nightly) for one in LARGE)], ids=str
)
def test_a_stored_row_is_what_a_simulation_gives(network, plan):
    seconds, gib = simulate([plan], LLAMA_70B, GPUS, BATCH, **NETWORKS[network])[0]
    assert simulated.rows(network)[plan] == (pytest.approx(seconds, abs=1e-3), pytest.approx(gib, abs=0.2))


@pytest.mark.parametrize("network", NETWORKS)
def test_every_stored_row_is_told_in_a_sentence_if_it_is_slow(network):
    best, _ = simulated.fastest(network)
    for plan, (seconds, gib) in simulated.rows(network).items():
        assert not plan.wrong(LLAMA_70B, GPUS, BATCH)
        if gib > ROOM:
            assert "runs out of memory" in planning._fills(plan)
        elif seconds > best:
            assert len(planning._slowed(plan, network)) > 20
