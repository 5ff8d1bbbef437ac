"""Under the checks: the best cut, the schedules that it knows, and GPUs on which the formulas hold exactly."""

from __future__ import annotations

import itertools

import pytest

from utils.checks import Wrong
from utils.checks.model_parallelism import balancing, schedules
from utils.checks.model_parallelism.ideal_stages import GPIPE, Case
from utils.checks.model_parallelism.pipeline_steps import ideal_cluster, right_gpipe_step, run_step
from utils.checks.model_parallelism.pipeline_watch import Watch
from utils.checks.model_parallelism.schedules import play, right_schedule


@pytest.fixture(autouse=True)
def _threads_as_before():
    import torch

    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("costs", "p"), balancing.COSTS)
def test_the_smallest_largest_stage_is_that_of_trying_all_cuts(costs, p):
    cuts = itertools.combinations(range(1, len(costs)), p - 1)
    stages = ([costs[a:b] for a, b in itertools.pairwise([0, *cut, len(costs)])] for cut in cuts)
    assert balancing.smallest_largest(costs, p) == min(max(map(sum, cut)) for cut in stages)


# --- Schedules -------------------------------------------------------------------------------------------------


def all_stages(make, p, m):
    return [make(stage, p, m) for stage in range(p)]


@pytest.mark.parametrize(("p", "m"), schedules.PIPELINES)
def test_1f1b_takes_as_long_as_the_formula_for_the_bubble_says(p, m):
    played = play(all_stages(right_schedule, p, m))
    assert not played.stuck
    assert played.end == 3 * (m + p - 1)  # a forward takes 1, a backward 2


@pytest.mark.parametrize(("p", "m"), schedules.PIPELINES)
def test_1f1b_never_has_more_micro_batches_on_a_stage_than_the_rest_of_the_pipeline_can_hold(p, m):
    for stage, items in enumerate(all_stages(right_schedule, p, m)):
        alive = itertools.accumulate(1 if item[0] == "F" else -1 for item in items)
        assert max(alive) == min(p - stage, m)


def test_every_mistaken_schedule_is_unlike_the_right_one_and_unlike_the_others():
    cases = [(stage, p, m) for p, m in schedules.PIPELINES for stage in range(p)]
    right = [right_schedule(*case) for case in cases]
    made = {sentence: [make(*case) for case in cases] for sentence, make in schedules.SCHEDULE_MISTAKES.items()}
    for sentence, lists in made.items():
        assert lists != right
        assert [other for other, others in made.items() if others == lists] == [sentence]
        assert all(sorted(one) == sorted(two) for one, two in zip(lists, right, strict=True))


def test_stages_that_wait_for_each_other_are_found():
    stuck = play([["F0", "B0", "F1", "B1"], ["F0", "F1", "B0", "B1"]]).stuck
    assert stuck == ("stage 0 is at B0 and waits for B0 of stage 1, stage 1 is at F1 and waits for F1 of stage 0")
    assert play([["F0", "F1", "B0", "B1"], ["F0", "F1", "B0", "B1"]]).stuck == ""


# --- Steps on ideal GPUs ---------------------------------------------------------------------------------------


def watched(step, case: Case) -> Watch:
    return run_step(step, case)


@pytest.mark.parametrize(("p", "m"), [(1, 2), (2, 3), (3, 5), (4, 8)])
def test_on_ideal_gpus_gpipe_has_exactly_the_bubble_of_the_formula(p, m):
    case = Case(p, m, 16 * m)
    watch = watched(right_gpipe_step, case)
    assert watch.bubble == pytest.approx(case.bubble, abs=1e-6)
    assert len(watch.transfers) == 2 * (p - 1) * m
    assert {watch.order(gpu) for gpu in range(p)} == {"F" * m + "B" * m}


def test_every_stage_takes_twice_as_long_backward_as_forward():
    watch = watched(right_gpipe_step, Case(3, 4, 64))
    for gpu in range(3):
        times = {
            phase: sum(event.seconds for event in watch.compute if event.gpus == (gpu,) and event.phase == phase)
            for phase in ("forward", "backward")
        }
        assert times["backward"] == pytest.approx(2 * times["forward"])


def test_gpipe_holds_all_micro_batches_and_what_is_held_is_counted_in_micro_batches():
    held = [watched(right_gpipe_step, Case(2, m, 64 * m)).held(0) for m in (2, 4, 8)]
    assert held == pytest.approx([2, 4, 8], abs=0.1)


def test_a_copy_that_is_ready_does_not_wait_for_one_that_was_launched_before():
    import torch

    from utils import simgpu

    ideal_cluster(3)
    long, short = (torch.ones(64, 64, device=f"simgpu:{gpu}") for gpu in (2, 0))
    with simgpu.profile() as prof:
        for tensor in (long @ long, short):
            with simgpu.stream(simgpu.Stream(1)):
                tensor.to("simgpu:1")
    copies = {event.gpus: event for event in prof.events if len(event.gpus) == 2}
    assert copies[0, 1].end < 1e-9 < copies[2, 1].start


def test_a_mistake_in_the_weights_is_recognised_for_every_way_to_cut_the_batch():
    def step(cut, weight):
        def run(stages, batch, targets, loss_fn, m):
            total = 0
            for x, y in zip(cut(batch, m), cut(targets, m), strict=True):
                for i, stage in enumerate(stages):
                    x = stage(x.to(f"simgpu:{i}"))
                loss = loss_fn(x, y) * weight(len(y), len(targets), m)
                loss.backward()
                total = total + loss.detach()
            return total

        return run

    cuts = (lambda t, m: t.tensor_split(m), lambda t, m: t.chunk(m))
    for cut in cuts:
        watched(step(cut, lambda n, N, m: n / N), Case(2, 4, 10))
        with pytest.raises(Wrong, match="every micro-batch has the same weight"):
            watched(step(cut, lambda n, N, m: 1 / m), Case(2, 4, 10))
        with pytest.raises(Wrong, match="each micro-batch counts fully"):
            watched(step(cut, lambda n, N, m: 1), Case(2, 4, 10))


def test_a_bubble_that_is_nine_percent_too_large_is_too_large():
    watch = watched(right_gpipe_step, Case(4, 8, 128))
    assert watch.judge(GPIPE)["bubble"] == pytest.approx(3 / 11)
    watch.case = Case(4, 9, 144)  # 3 / 12
    with pytest.raises(Wrong, match="the bubble is too large"):
        watch._judge_bubble("why")
