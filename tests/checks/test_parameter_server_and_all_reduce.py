"""Under the checks of the lab on all-reduces: cases that show mistakes, what is read from them, the server's rule."""

from __future__ import annotations

import itertools
import random

import labs_support as support
import nbformat
import pytest
import torch

from checks import parameter_server_and_all_reduce
from checks.framework import exercises_in
from checks.parameter_server_and_all_reduce import agreeing, halvings, hierarchies, ring_messages, rings, servers
from checks.parameter_server_and_all_reduce.traces import BASE, FIRST, what_was_added
from course import outline

SOLUTION = outline.notebook("parameter_server_and_all_reduce", "solutions")
EXERCISES = {exercise.name: exercise for exercise in exercises_in(parameter_server_and_all_reduce)}
SEEDS = range(12)
# The ways in which checks of this course were once fooled, each with answers to this lab that try it.
CLASSES = {
    "side effects on what was passed in": ("the tensor is filled", "writes beyond its end", "scales the gradient",
                                           "works on what it was given", "knows them from the last time"),
    "one size only": ("three chunks always", "two ranks a node always", "two workers only", "one learning rate"),
    "tolerance and number types": ("in float32", "integers as float64", "modulo 256", "in 4 bytes"),
    "channels that nobody watches": ("through the store", "a file", "a copy of numpy's", "a copy as bytes",
                                     "a group in every call", "a thread"),
    "luck of the clock taken for order": ("never waits", "sleeps in place of a wait", "changes what is on its way",
                                          "irecv is not waited for"),
    "a reference taken after the answer has run": ("keeps the worker's own gradients", "hands out its own"),
    "ready-made answers": ("the library", "the course's own"),
    "exceptions": ("raises too early", "an assertion", "ends the program", "only rank 0 raises", "rank 0 raises"),
}  # fmt: skip


@pytest.mark.parametrize("kind", CLASSES)
def test_every_way_to_fool_a_check_is_tried_on_this_lab(kind):
    tried = {known.name for one in EXERCISES.values() for known in support.answers_in(support.ANSWERS, one)}
    assert set(CLASSES[kind]) - tried == set()


# ---------------------------------------------------------------------- cases
def _drawn(contract, seed):
    return contract.draw(random.Random(f"{contract.name} {seed}"))


@pytest.mark.parametrize("seed", SEEDS)
def test_lengths_cover_what_is_easily_forgotten(seed):
    cases = _drawn(agreeing.CONTRACT, seed)
    assert len({case["ranks"] for case in cases}) == 3 and {case["ranks"] for case in cases} >= {1}
    for ranks in {case["ranks"] for case in cases} - {1}:
        lengths = [agreeing._numbers(case) for case in cases if case["ranks"] == ranks]
        assert len(set(lengths[0])) == 1 and any(set(one) == {0} for one in lengths)
        different = [one for one in lengths if len(set(one)) > 1]
        assert ranks == 2 or any(len(one) * length == sum(one) for one in different for length in one), "the mean"
        assert any(len({length % 256 for length in one}) == 1 for one in different), "equal in a byte"
        assert any(0 in one for one in different)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("contract", [rings.CONTRACT, hierarchies.CONTRACT], ids=["ring", "levels"])
def test_tensors_cover_what_is_easily_forgotten(contract, seed):
    cases = _drawn(contract, seed)
    for ranks in {case["ranks"] for case in cases} - {1}:
        mine = [case for case in cases if case["ranks"] == ranks]
        assert mine[0]["type"] == "trace" and mine[0]["length"] % ranks, "what tells most comes first"
        assert any(case["length"] < ranks for case in mine) and any(case["length"] % ranks == 0 for case in mine)
    assert sum(case["length"] >= ring_messages.LARGE for case in cases) == 1
    assert {"trace", "int64", "float64"} < {case["type"] for case in cases} | {""}
    shapes = {(case["nodes"], case["ranks per node"]) for case in cases if "nodes" in case}
    assert not shapes or {(2, 3), (3, 2), (1, 1)} < shapes


@pytest.mark.parametrize("kind", ["int64", "int32"])
def test_integers_of_the_cases_do_not_survive_as_floats(kind):
    case = {"type": kind, "length": 50, "seed": 3}
    numbers = ring_messages.numbers(case, 1)
    smaller = {"int64": torch.float64, "int32": torch.float32}[kind]
    assert (numbers.to(smaller).to(numbers.dtype) != numbers).any()
    total = sum(ring_messages.numbers(case, rank).long() for rank in range(5))
    assert total.equal(total.to(numbers.dtype).long()), "no overflow"


# ---------------------------------------------------------------------- what is read from a trace
def _trace(counts):
    """What four ranks hold if element i of rank r is made of these counts of each rank's numbers."""
    return [
        [(FIRST + i) * sum(c * BASE**q for q, c in enumerate(count)) for i, count in enumerate(one)] for one in counts
    ]


FOUR, TWO_BY_TWO = None, (2, 2)  # nodes and ranks per node, where there are nodes
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
    assert sentence in what_was_added(_trace(counts), plan, nodes_talked=False)


def test_numbers_of_another_place_are_noticed():
    after = [[0] * 4 for _ in range(4)]
    for rank, i in itertools.product(range(4), range(4)):
        after[rank][i] = sum((FIRST + (i + (q == 2)) % 4) * BASE**q for q in range(4))
    assert "is no sum of numbers of this place" in what_was_added(after, None, nodes_talked=False)


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


class _Watch:
    """Plays a scene without any rank."""

    def call(self, name, **arguments):
        return Right(*arguments.values())

    def step(self, *_, **__):
        import contextlib

        return contextlib.nullcontext()


@pytest.mark.parametrize("seed", SEEDS)
def test_in_schedules_workers_wait_and_gradients_get_stale(seed):
    late = waited = 0
    for case in _drawn(servers.CONTRACT, seed):
        facts = {}
        servers.scene(case, _Watch(), facts)
        assert list(servers.judge(case, [facts])) == []
        events = [event for one in facts["servers"] for event in one["events"]]
        waited += sum(event["what"] == "pull" and event["weights"] is None for event in events)
        late = max([late, *(event["got"] for event in events if event["what"] == "push")])
    assert waited > 20 and late > 3


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


@pytest.mark.parametrize("seed", SEEDS)
def test_worlds_for_halving_have_no_rank_one_and_two_beyond_a_power_of_two(seed):
    cases = _drawn(halvings.CONTRACT, seed)
    beyond = [ranks - halvings.power_of(ranks) for ranks in dict.fromkeys(case["ranks"] for case in cases)]
    assert beyond == [1, 2, 0, 0]
    for ranks in (6, halvings.LARGEST):
        lengths = [case["length"] for case in cases if case["ranks"] == ranks]
        assert any(length % 2 for length in lengths) and min(lengths) < ranks
        assert lengths[0] >= halvings.power_of(ranks) ** 2 or ranks != halvings.LARGEST, "what tells most comes first"


def test_partners_of_a_world_that_is_no_power_of_two():
    partners = [sorted(halvings._partners(rank, 6)) for rank in range(6)]
    assert partners == [[1, 2, 4], [0, 3, 5], [0, 3], [1, 2], [0], [1]]
    assert halvings._partners(0, 1) == []


def test_the_lab_says_what_halving_sends_between_two_nodes_with_four_ranks_each():
    crossing = {first: 0.0 for first in (1, 4)}
    for first in crossing:
        distances = [1, 2, 4] if first == 1 else [4, 2, 1]
        for number, distance in enumerate(distances):
            crossing[first] += sum(2 * 0.5 ** (number + 1) for rank in range(8) if rank // 4 != (rank ^ distance) // 4)
    text = next(
        cell.source for cell in nbformat.read(SOLUTION, as_version=4).cells if "r XOR 4, or with" in cell.source
    )
    assert f"{crossing[4]:.0f} · S. If they come last, it is S/8, twice: {crossing[1]:.0f} · S" in text


def test_the_lab_says_what_has_to_stay():
    text = " ".join("\n".join(cell.source for cell in nbformat.read(SOLUTION, as_version=4).cells).split())
    for promise in ("What your function is not asked to change stays as it was", "message is waited for before",
                    "new process groups, files and threads", "The tensor has one dimension", "one number each",
                    "are numbers of somebody else", "NumPy's arrays, lists and bytes count as well",
                    "from the arguments, not from the environment", "gradients, stay as they are",
                    "elements longer or shorter than S/2, S/4"):  # fmt: skip
        assert promise in text
