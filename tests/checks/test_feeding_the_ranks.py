"""What the lab shows: its broken loops are refused, and each of its simulated machines has one clear answer."""

from __future__ import annotations

import random

import pytest

from checks.engine import Reference
from checks.labs import feeding_the_ranks
from checks.labs.feeding_the_ranks.simulated_loader import MACHINES, OFFICIAL, Machine, draw


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("every_epoch", "every epoch has the same order"),
        ("resumed", "the orders are one epoch late: iter(loader) draws the order"),
        ("augmented", "the workers keep the data set of the first epoch"),
    ],
)
def test_the_loops_that_the_lab_shows_are_refused(name, says):
    broken = Reference("feeding_the_ranks", f"broken_{name}").functions()
    assert says in repr(getattr(feeding_the_ranks, name).verdict(*broken))


def _right(machine: Machine) -> tuple[int, dict[int, float]]:
    seconds = {workers: machine.true_seconds(workers) for workers in range(machine.most + 1)}
    return min(workers for workers, one in seconds.items() if one <= 1.05 * min(seconds.values())), seconds


def test_every_machine_has_one_clear_answer_and_no_rule_of_thumb_finds_all():
    right = {}
    for name, machine in MACHINES.items():
        right[name], seconds = _right(machine)
        best = min(seconds.values())
        assert seconds[right[name]] <= 1.01 * best
        assert all(seconds[fewer] >= 1.1 * best for fewer in range(right[name]))
    assert len(set(right.values())) >= 5
    assert any(right[name] == 0 for name in right)
    assert [name for name in right if right[name] < MACHINES[name].most]


@pytest.mark.parametrize("number", range(10))
def test_careful_measurements_find_the_answer_whatever_the_noise_and_the_pace(number):
    [choose_workers] = OFFICIAL.functions()
    for seed in range(10):
        case = draw(random.Random(seed), number)
        right, _ = _right(case["machine"])
        assert feeding_the_ranks.workers.play(case, choose_workers) == {"the workers of a rank": right}
