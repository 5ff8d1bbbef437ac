"""What is in order: drawn programs against reachability over the edges that CUDA documents."""

import itertools
import random

import pytest
import torch
from simgpu_support import default, square

import simgpu
from simgpu.time.accesses import Extent

pytestmark = pytest.mark.usefixtures("three_gpus")


def drawn(seed: int) -> list[tuple]:
    """Steps of a program: work of a stream that reads some tensors and writes one, and what may order it."""
    rng, steps = random.Random(seed), []
    for _ in range(rng.randint(2, 22)):
        stream, other = rng.randrange(4), rng.randrange(4)
        kind = rng.choices(("work", "stream waits", "record", "event", "host"), (6, 8, 2, 3, 2))[0]
        if kind == "work":
            reads = tuple(sorted(rng.sample(range(4), rng.randint(0, 2))))
            steps.append((kind, stream, reads, rng.randrange(4)))
        elif kind in ("record", "event"):
            steps.append((kind, stream, rng.randrange(2)))
        else:
            steps.append((kind, stream, other))
    return steps


def first_race(steps: list[tuple]) -> int | None:
    """The first step that races with an earlier one."""
    return (race_of(steps) or (None, None))[0]


def race_of(steps: list[tuple]) -> tuple[int, int] | None:
    """The first step that races with an earlier one, and that one, by reachability in the graph of all that waits."""
    edges: dict[int, set[int]] = {}  # step → steps that come directly before
    last, host, events = [None] * 4, set(), {}
    accesses: list[tuple[int, set, int]] = []

    def before(step: int) -> set[int]:
        seen, todo = set(), [step]
        while todo:
            for one in edges[todo.pop()] - seen:
                seen.add(one)
                todo.append(one)
        return seen

    for number, (kind, stream, *rest) in enumerate(steps):
        mine = edges[number] = {last[stream]} - {None}
        if kind == "work":
            mine |= host
            reads, writes = set(rest[0]) - {rest[1]}, rest[1]
            comes_before = before(number)
            for other, others_reads, others_write in accesses:
                if other not in comes_before and (
                    writes in others_reads or others_write in reads or writes == others_write
                ):
                    return number, other
            accesses.append((number, reads, writes))
            last[stream] = number
        elif kind == "stream waits":
            mine |= {last[rest[0]]} - {None}
            last[stream] = number
        elif kind == "record":
            events[rest[0]] = last[stream]
            mine.clear()
        elif kind == "event":
            mine |= {events.get(rest[0])} - {None}
            last[stream] = number
        else:
            host |= mine
    return None


def first_found(steps: list[tuple]) -> int | None:
    """The first step at which the detector raises."""
    streams, tensors = [default(), *(simgpu.Stream(0) for _ in range(3))], [square() for _ in range(4)]
    events = [torch.simgpu.Event() for _ in range(2)]
    with simgpu.races(stop=True):
        for number, (kind, stream, *rest) in enumerate(steps):
            one = streams[stream]
            try:
                if kind == "work":
                    with torch.simgpu.stream(one):
                        for read in rest[0]:
                            if read != rest[1]:
                                tensors[rest[1]].add_(tensors[read])
                        tensors[rest[1]].mul_(0.5)
                elif kind == "stream waits":
                    one.wait_stream(streams[rest[0]])
                elif kind == "record":
                    events[rest[0]].record(one)
                elif kind == "event":
                    one.wait_event(events[rest[0]])
                else:
                    one.synchronize()
            except simgpu.RaceError:
                return number
    return None


@pytest.mark.parametrize("start", range(0, 400, 100))
def test_the_first_race_of_drawn_programs_is_found_where_it_is(start):
    answers = []
    for seed in range(start, start + 100):
        steps = drawn(seed)
        answers.append(first_race(steps))
        assert first_found(steps) == answers[-1], (seed, steps)
    assert 20 < answers.count(None) < 90, "both kinds of programs are drawn"


def test_views_meet_if_they_share_a_byte():
    rng = random.Random(0)
    for _ in range(400):
        base = torch.zeros(60, dtype=rng.choice((torch.float32, torch.float16, torch.uint8)))
        views = []
        for _ in range(2):
            rows, columns = rng.randint(1, 4), rng.randint(1, 5)
            strides = (rng.choice((0, 1, 5, 7, 12)), rng.choice((0, 1, 2, 3)))
            views.append(base.as_strided((rows, columns), strides, rng.randint(0, 9)))
        other = base.view(torch.uint8)[rng.randint(0, 30) :]
        for a, b in ((views[0], views[1]), (views[0], other)):
            used = [bytes_of(view) for view in (a, b)]
            assert Extent.of(a).meets(Extent.of(b)) == bool(used[0] & used[1])
            if Extent.of(a).covers(Extent.of(b)):
                assert used[0] >= used[1]


def bytes_of(view: torch.Tensor) -> set[int]:
    found, size = set(), view.element_size()
    for place in itertools.product(*(range(n) for n in view.shape)):
        start = view.storage_offset() + sum(i * step for i, step in zip(place, view.stride(), strict=True))
        found |= set(range(start * size, (start + 1) * size))
    return found


def test_parts_of_one_tensor_can_be_used_in_two_streams():
    whole, side = torch.zeros(6, 6, device="simgpu:0"), simgpu.Stream(0)
    with simgpu.races() as races:
        with torch.simgpu.stream(side):
            whole[:, :3].add_(1)
            whole[::2, 3:].add_(1)
        whole[1::2, 3:].add_(1)
    assert not races.found
    with simgpu.races() as races:
        with torch.simgpu.stream(side):
            whole[:, :3].add_(1)
        whole[:, 2:].add_(1)
    assert len(races.found) == 1


class Program:
    """``self(name)`` says whether the ordering call of that name is to be made."""

    def __init__(self, without: str) -> None:
        self.without = without

    def __call__(self, name: str) -> bool:
        return name != self.without


def events(keeps: Program) -> None:
    x, side, ready, done = square(), simgpu.Stream(0), torch.simgpu.Event(), torch.simgpu.Event()
    if keeps("record"):
        ready.record()
    if keeps("wait"):
        ready.wait(side)
    with torch.simgpu.stream(side):
        x.mul_(2)
        done.record()
    if keeps("synchronize"):
        done.synchronize()
    x + 1
