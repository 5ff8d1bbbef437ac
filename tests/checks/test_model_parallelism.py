"""What the lab on model parallelism says of its schedules; GPUs on which the formula for the bubble is exact."""

from __future__ import annotations

import itertools

import pytest
import torch

import simgpu
from checks.engine import Reference, gpus
from checks.labs.model_parallelism import cutting, steps

(schedule,) = Reference("model_parallelism", "schedule_1f1b").functions()
PIPELINES = ((3, 4), (4, 8), (2, 5), (4, 2), (5, 5), (2, 2), (1, 3))  # stages, micro-batches


@pytest.mark.parametrize(("p", "m"), PIPELINES)
def test_1f1b_takes_as_long_as_the_formula_for_the_bubble_says(p, m):
    todo, ends, free = [schedule(stage, p, m) for stage in range(p)], {}, [0] * p

    def needs(stage, item):
        other = stage - 1 if item[0] == "F" else stage + 1
        return ends.get((other, item)) if 0 <= other < p else 0

    while any(todo):
        stage = next(stage for stage in range(p) if todo[stage] and needs(stage, todo[stage][0]) is not None)
        item = todo[stage].pop(0)
        start = max(free[stage], needs(stage, item))
        ends[stage, item] = free[stage] = start + (1 if item[0] == "F" else 2)
    assert max(free) == 3 * (m + p - 1)


@pytest.mark.parametrize(("p", "m"), PIPELINES)
def test_a_stage_never_has_more_micro_batches_than_the_lab_says(p, m):
    for stage in range(p):
        alive = itertools.accumulate(1 if item[0] == "F" else -1 for item in schedule(stage, p, m))
        assert max(alive) == min(p - stage, m)


@pytest.mark.parametrize("case", [case for case in cutting.COSTS if len(case["costs"]) < 9], ids=str)
def test_the_largest_stage_of_the_official_cut_is_the_smallest_of_all_cuts(case):
    costs, p, (balance, _) = case["costs"], case["p"], cutting.OFFICIAL.functions()
    cuts = itertools.product(range(1, len(costs) + 1), repeat=p)
    ways = [[0, *itertools.accumulate(cut)] for cut in cuts if sum(cut) == len(costs)]
    largest = [max(sum(costs[a:b]) for a, b in itertools.pairwise(ends)) for ends in ways]
    ends = [0, *itertools.accumulate(balance(costs, p))]
    assert max(sum(costs[a:b]) for a, b in itertools.pairwise(ends)) == min(largest)


def test_a_copy_that_is_ready_does_not_wait_for_one_that_was_launched_before():
    steps._ideal_cluster(3)
    long, short = (torch.ones(64, 64, device=f"simgpu:{gpu}") for gpu in (2, 0))
    with gpus.seen() as seen:
        for tensor in (long @ long, short):
            with simgpu.stream(simgpu.Stream(1)):
                tensor.to("simgpu:1")
    copies = {tuple(event[1]): event for event in seen["events"] if len(event[1]) == 2}
    assert copies[0, 1][4] < 1e-9 < copies[2, 1][3]
