"""What the lab on all-reduces says in numbers, tried out."""

from __future__ import annotations

import nbformat
import pytest

from course import outline


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


def test_the_lab_says_what_halving_sends_between_two_nodes_with_four_ranks_each():
    crossing = {first: 0.0 for first in (1, 4)}
    for first in crossing:
        distances = [1, 2, 4] if first == 1 else [4, 2, 1]
        for number, distance in enumerate(distances):
            crossing[first] += sum(2 * 0.5 ** (number + 1) for rank in range(8) if rank // 4 != (rank ^ distance) // 4)
    cells = nbformat.read(outline.notebook("parameter_server_and_all_reduce", "solutions"), as_version=4).cells
    text = next(cell.source for cell in cells if "r XOR 4, or with" in cell.source)
    assert f"{crossing[4]:.0f} · S. Last: S/8, twice, {crossing[1]:.0f} · S," in text
