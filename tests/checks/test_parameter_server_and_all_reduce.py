"""Under the checks: what its probes count, what its judges read from it, and the rule of its server."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import cloudpickle
import labs_support as support
import pytest
import torch

from utils.checks import Wrong, parameter_server_and_all_reduce, run
from utils.checks.framework import exercises_in
from utils.checks.parameter_server_and_all_reduce import probes, servers
from utils.checks.parameter_server_and_all_reduce.probes import BASE, FIRST, Case, Plan
from utils.checks.parameter_server_and_all_reduce.traces import what_was_added

ANSWERS = support.ANSWERS / "parameter_server_and_all_reduce"
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks need not import pytest
EXERCISES = {exercise.name: exercise for exercise in exercises_in(parameter_server_and_all_reduce)}


# ---------------------------------------------------------------------- what the probes see
def _watched(folder):
    """On two ranks: what ``watch`` says of known messages and tensors."""
    import torch.distributed as dist

    rank, tensor = dist.get_rank(), torch.ones(10)
    note = Path(folder) / f"calls.{rank}"
    with probes.watch(tensor, note) as facts:
        buffer = torch.empty(4)  # 16 bytes
        buffer[:2].add_(tensor[:2])  # views cost nothing
        del buffer
        assert torch.tensor([1.0, 2.0]).nbytes == 8
        sending = dist.isend(tensor[:3], 1 - rank)
        dist.recv(tensor[3:6], 1 - rank)
        sending.wait()
    return [facts["extra"], probes.messages_of(facts), probes.messages_in(note.read_text())]


def test_messages_and_the_largest_memory_are_counted(tmp_path):
    for rank, (extra, heard, noted) in enumerate(run(_watched, str(tmp_path), ranks=2)):
        assert extra == 16
        assert [tuple(one) for one in heard] == [("send", 1 - rank, 12), ("recv", 1 - rank, 12)]
        assert heard == noted


def test_messages_that_do_not_fit_are_found():
    fits = {0: [("send", 1, 8), ("send", 1, 4)], 1: [("recv", 0, 8), ("recv", 0, 4)]}
    assert probes.misfit(fits) == ""
    fits[1][1] = ("recv", 0, 8)
    assert probes.misfit(fits) == "rank 0 sends 4 bytes, and rank 1 has room for 8"


def test_integers_of_the_cases_do_not_survive_as_floats():
    for dtype, smaller in (("int64", torch.float64), ("int32", torch.float32)):
        numbers = Case(1001, dtype).numbers(1)
        assert (numbers.to(smaller).to(numbers.dtype) != numbers).any()
        assert (
            Case(1001, dtype)
            .total(6)
            .equal(sum(Case(1001, dtype).numbers(rank).long() for rank in range(6)).to(numbers.dtype))
        )


def test_lengths_cover_what_is_easily_forgotten():
    for ranks in (2, 3, 4, 6):
        lengths = {case.length for case in parameter_server_and_all_reduce._cases(ranks)}
        assert (
            1 in lengths and any(length % ranks for length in lengths) and any(not length % ranks for length in lengths)
        )
        assert {case.dtype for case in parameter_server_and_all_reduce._cases(ranks)} == {
            "int64",
            "int32",
            "float32",
            "float64",
        }


def test_a_dead_lock_ends_with_the_table_of_who_waits_for_whom(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_PROGRESS", str(tmp_path / "progress.json"))
    verdict, _ = support.judge_file(ANSWERS / "ring" / "wrong_dead_lock.py", EXERCISES["ring"])
    assert verdict.state == "wrong"
    assert "rank 0 waits in send for rank 1: rank 1 is in send" in verdict.details


# ---------------------------------------------------------------------- what is read from a trace
def _trace(counts):
    """What four ranks hold if element i of rank r is made of these counts of each rank's numbers."""
    return [
        [(FIRST + i) * sum(c * BASE**q for q, c in enumerate(count)) for i, count in enumerate(one)] for one in counts
    ]


FOUR = Plan((1, 4), (), "", parameter_server_and_all_reduce.judges.judge_ring)
TWO_BY_TWO = Plan((2, 2), (), "", parameter_server_and_all_reduce.judges.judge_levels, arguments=(2, 2))
ONES = [1, 1, 1, 1]


def _own(rank):
    return [int(rank == q) for q in range(4)]


@pytest.mark.parametrize(
    ("plan", "counts", "sentence"),
    [
        (FOUR, [[ONES] * 4 + [_own(r)] for r in range(4)], "the last elements are not added: [4]"),
        (FOUR, [[[2, 1, 1, 1]] + [ONES] * 3] + [[ONES] * 4] * 3, "has counted rank 0's numbers 2 times in element 0"),
        (FOUR, [[ONES] * 4] * 3 + [[[1, 1, 0, 1]] * 4], "rank 0 has the whole sum, but rank 3 has not"),
        (FOUR, [[_own(r)] * r + [ONES] + [_own(r)] * (3 - r) for r in range(4)], "has the sum in 1 of 4 elements only"),
        (FOUR, [[[1, 1, 0, 1]] * 4] * 4, "rank 2's numbers are missing in element 0 of rank 0"),
        (TWO_BY_TWO, [[[1, 1, 0, 0]] * 4] * 2 + [[[0, 0, 1, 1]] * 4] * 2, "the phase between the nodes is missing"),
    ],
)
def test_a_trace_names_the_mistake(plan, counts, sentence):
    assert sentence in what_was_added(plan, _trace(counts), nodes_talked=False)


def test_numbers_of_another_place_are_noticed():
    after = [[0] * 4 for _ in range(4)]
    for rank, i in itertools.product(range(4), range(4)):
        after[rank][i] = sum((FIRST + (i + (q == 2)) % 4) * BASE**q for q in range(4))
    assert "is made of numbers of other places" in what_was_added(FOUR, after, nodes_talked=False)


# ---------------------------------------------------------------------- the server
class Right:
    def __init__(self, weights, workers, bound, lr):
        self.weights, self.bound, self.lr = weights, bound, lr
        self.steps, self.at_pull = [0] * workers, [0] * workers

    def pull(self, worker):
        self.at_pull[worker] = sum(self.steps)
        return None if self.steps[worker] - min(self.steps) > self.bound else self.weights

    def push(self, worker, gradient):
        staleness = sum(self.steps) - self.at_pull[worker]
        self.weights = self.weights - self.lr * gradient
        self.steps[worker] += 1
        return staleness


def test_the_example_in_the_lab_is_right():
    server, weights = Right(torch.zeros(1), 2, 1, 0.5), torch.zeros(1)
    assert server.pull(0) is not None and server.pull(1) is not None
    assert server.push(1, weights) == 0
    assert server.pull(1) is not None
    assert server.push(1, weights) == 0
    assert server.pull(1) is None
    assert server.push(0, weights) == 2
    assert server.pull(1) is not None


def test_schedules_let_workers_wait_and_gradients_get_stale():
    for workers, bound, seed in parameter_server_and_all_reduce.PLAYS:
        events = servers.play(Right, workers, bound, seed)
        assert len(events) == servers.EVENTS
        waits = sum(event["what"] == "pull" and event["waits"] for event in events)
        assert (waits > 0) == (workers > 1)
        assert workers == 1 or max(event["staleness"] for event in events if event["what"] == "push") > 1


def _stalest(workers, bound, steps):
    """The largest staleness in any order of events, by trying all. A state: steps done, updates since each pull."""
    todo, seen, worst = [((0,) * workers, (None,) * workers)], set(), 0
    while todo:
        state = todo.pop()
        if state in seen or max(state[0]) > steps:
            continue
        seen.add(state)
        done, since = state
        for worker in range(workers):
            if since[worker] is None:
                if done[worker] - min(done) <= bound:
                    todo.append((done, (*since[:worker], 0, *since[worker + 1 :])))
                continue
            worst = max(worst, since[worker])
            after = tuple(None if q == worker or one is None else one + 1 for q, one in enumerate(since))
            todo.append(((*done[:worker], done[worker] + 1, *done[worker + 1 :]), after))
    return worst


@pytest.mark.parametrize(("workers", "bound"), [(2, 0), (2, 1), (2, 2), (3, 0), (3, 1)])
def test_the_lab_tells_the_right_bound_of_the_staleness(workers, bound):
    assert _stalest(workers, bound, steps=3 * bound + 3) == (workers - 1) * (2 * bound + 1)


def test_on_real_ranks_a_server_that_wakes_nobody_is_found():
    class Asleep(Right):
        def pull(self, worker):
            self.at_pull[worker] = sum(self.steps)
            return self.weights if self.steps[worker] < 1 else None

    with pytest.raises(Wrong, match="all workers wait for each other after"):
        run(servers.on_ranks, Asleep, 2, 1, 3, ranks=3, timeout=40)


def test_on_real_ranks_the_fast_workers_come_to_the_bound():
    leads, weights, right = run(servers.on_ranks, Right, 3, 1, 5, ranks=4, timeout=40)[0]
    assert max(leads) == 1
    assert weights.equal(right)


def test_bound_0_in_step_is_synchronous():
    weights, right = servers.in_step(Right)
    assert weights.equal(right)
