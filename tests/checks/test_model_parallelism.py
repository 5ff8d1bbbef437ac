"""Under the checks: the best cut, the schedules that they know, and GPUs on which the formulas hold exactly."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

import simgpu
from checks.contracts import gpus
from checks.model_parallelism import costs as cuts_of
from checks.model_parallelism import marked, pipelines, real_ranks, schedules, stages
from checks.model_parallelism.schedules import play, right_schedule


@pytest.fixture(autouse=True)
def _threads_as_before():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def _drawn_costs():
    (case,) = cuts_of.draw_costs(random.Random(0))
    return case["lists"]


@pytest.mark.parametrize(("costs", "p"), _drawn_costs())
def test_the_smallest_largest_stage_is_that_of_trying_all_cuts(costs, p):
    cuts = itertools.combinations(range(1, len(costs)), p - 1)
    tried = ([costs[a:b] for a, b in itertools.pairwise([0, *cut, len(costs)])] for cut in cuts)
    assert cuts_of.smallest_largest(costs, p) == min(max(map(sum, cut)) for cut in tried)


def test_pieces_have_what_a_cost_may_be_confused_by():
    made = [piece for seed in range(12) for piece in stages.pieces(seed, 6, "float64 and float32")[0]]
    kinds = {parameter.dtype for piece in made for parameter in piece.parameters()}
    assert kinds == {torch.float64, torch.float32}
    assert any(not list(piece.parameters()) for piece in made)
    assert any(list(piece.buffers()) for piece in made)
    assert any(not parameter.requires_grad for piece in made for parameter in piece.parameters())


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


def gpipe_step(made, batch, targets, loss_fn, m):
    losses = []
    for x, y in zip(batch.tensor_split(m), targets.tensor_split(m), strict=True):
        for i, stage in enumerate(made):
            x = stage(x.to(f"simgpu:{i}"))
        losses.append(loss_fn(x, y) * len(y) / len(targets))
    for loss in losses:
        loss.backward()
    return sum(loss.detach() for loss in losses)


class _Watch:
    """Calls a function, and keeps no record."""

    def call(self, _name, **arguments):
        return gpipe_step(*arguments.values())


def watched(p, m, samples):
    case = {"ranks": 1, "gpus": p, "stages": p, "micro-batches": m, "samples": samples, "stages cost": "the same"}
    case |= {"play": "once", "gradients before": "none", "loss": "mse_loss", "seed": 3}
    facts = {}
    pipelines.play(case, _Watch(), facts, pipelines.GPIPE)
    assert list(pipelines.judge(case, [facts], pipelines.GPIPE)) == []
    return case, facts


@pytest.mark.parametrize(("p", "m"), [(1, 2), (2, 3), (3, 5), (4, 8)])
def test_on_ideal_gpus_gpipe_has_exactly_the_bubble_of_the_formula(p, m):
    case, facts = watched(p, m, 16 * m)
    (step,) = facts["steps"]
    assert pipelines.bubble(case, step) == pytest.approx((p - 1) / (m + p - 1), abs=1e-6)
    assert {pipelines.order(step, gpu) for gpu in range(p)} == {"F" * m + "B" * m}


def test_every_stage_takes_twice_as_long_backward_as_forward():
    _, facts = watched(3, 4, 64)
    for alone in facts["steps"][0]["alone"]:
        assert alone["flops"][1] == pytest.approx(2 * alone["flops"][0])


def test_gpipe_holds_all_micro_batches_and_what_is_held_is_counted_in_micro_batches():
    held = [pipelines.held(watched(2, m, 64 * m)[1]["steps"][0], 0) for m in (2, 4, 8)]
    assert held == pytest.approx([2, 4, 8], abs=0.1)


def test_a_bubble_that_is_nine_percent_too_large_is_too_large():
    case, facts = watched(4, 8, 128)
    other = case | {"micro-batches": 9, "samples": 144}
    (broken,) = pipelines._bubble(other, facts["steps"][0], "why")
    assert "the bubble is too large" in broken.sentence  # 3 / 11, and 3 / 12 would be right


def test_a_copy_that_is_ready_does_not_wait_for_one_that_was_launched_before():
    stages.ideal_cluster(3)
    long, short = (torch.ones(64, 64, device=f"simgpu:{gpu}") for gpu in (2, 0))
    with gpus.seen() as seen:
        for tensor in (long @ long, short):
            with simgpu.stream(simgpu.Stream(1)):
                tensor.to("simgpu:1")
    copies = {tuple(event[1]): event for event in seen["events"] if len(event[1]) == 2}
    assert copies[0, 1][4] < 1e-9 < copies[2, 1][3]


# --- A pipeline on real ranks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_pipelines_on_ranks_are_short_long_even_and_uneven_whatever_is_drawn(seed):
    cases = real_ranks.draw(random.Random(seed))
    assert {case["ranks"] for case in cases} == {2, 3, 4} and {case["type"] for case in cases} == {"float32", "float64"}
    assert all(case["micro-batches"] <= case["samples"] for case in cases)
    assert any(case["micro-batches"] < case["ranks"] for case in cases)
    assert any(case["micro-batches"] > case["ranks"] for case in cases)
    assert any(case["samples"] % case["micro-batches"] for case in cases)
    assert {case["dimensions"] for case in cases} == {2, 3} and {case["steps"] for case in cases} == {1, 2}
    assert all(case["dimensions"] == 2 for case in cases if case["loss"] == "cross_entropy")


class _Wire:
    phase = ""


def test_marks_say_in_which_order_a_stage_runs_and_how_many_micro_batches_it_keeps():
    (case, *_) = real_ranks.draw(random.Random(0))
    stage, wire = marked.pipeline(case)[1], _Wire()
    marks = marked.Marks(wire)
    marks.on(stage)
    shape = (2, *marked.shapes(case)[1][1:])
    kept = [(x, stage(x)) for x in (torch.randn(shape, requires_grad=True) for _ in range(3))]
    assert (marks.graphs, marks.inputs, wire.phase) == (3, 3, "3")
    kept[1][1].sum().backward()
    kept.clear()
    assert marks.passes == ["F0", "F1", "F2", "B1"] and wire.phase == "4"
    marks.begin()
    for _ in range(3):
        stage(torch.randn(shape, requires_grad=True)).sum().backward()
    assert marks.passes == ["F0", "B0", "F1", "B1", "F2", "B2"]
    assert (marks.graphs, marks.inputs) == (1, 1)


def _sent(peer: int, rows: int, case: dict, phase: int) -> dict:
    nbytes = rows * marked.bytes_of(case, 1)
    return {"name": "send", "peer": peer, "bytes": nbytes, "phase": str(phase)}


def test_a_message_that_comes_a_pass_late_or_has_another_size_is_told():
    case = {"ranks": 2, "micro-batches": 3, "samples": 8, "type": "float32", "dimensions": 2, "seed": 1}
    passes = schedules.right_schedule(0, 2, 3)
    assert passes == ["F0", "F1", "B0", "F2", "B1", "B2"]

    def told(*sent: tuple[int, int]) -> list[str]:
        step = {"passes": passes, "calls": [_sent(1, rows, case, phase) for rows, phase in sent]}
        return [broken.clause for broken in real_ranks._messages(case, step, 0)]

    assert told((3, 1), (3, 2), (2, 4)) == []
    assert told((2, 1), (3, 2), (3, 4)) == []
    assert told((3, 2), (3, 2), (2, 4)) == ["copies:2 late"]
    assert told((4, 1), (2, 2), (2, 4)) == ["copies:1 sizes"]
    assert told((3, 1), (3, 2)) == ["copies:1 sizes"]
