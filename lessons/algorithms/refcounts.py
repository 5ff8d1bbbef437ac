"""Reference counts without a lock, one machine step at a time: where leaks and dead objects with names come from.

One object has two names, one in thread A and one in thread B, so its count is 2. Then, at the same time,

- A makes a second name for it: ``count = count + 1``;
- B drops its name: ``count = count - 1``.

For the machine each of these lines is three steps: load the count into a register, add, store it. Nobody can tell
how the six steps of two threads mix. When both are done, A drops its two names, one after the other, with nobody
beside it. An object is freed when a drop makes its count zero. ``run`` plays one order of the six steps.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from utils.draw import palette
from utils.draw.picture import Picture
from utils.draw.svg import Canvas

RIGHT, LEAK, FREED = "right", "leak", "freed while referenced"
LOAD, ADD, STORE = "load", "add", "store"
_CHANGE = {"A": 1, "B": -1}


@dataclass(frozen=True)
class Moment:
    """What is true after one step.

    Args:
        thread: who made the step, "A" or "B".
        step: what it did: "load", "add", "store" or "drop".
        register: what is in that thread's register now; None after a drop.
        count: the count in memory.
        names: how many names there really are.
        freed: has the object been freed?
    """

    thread: str
    step: str
    register: int | None
    count: int
    names: int
    freed: bool

    def __str__(self) -> str:
        what = {
            LOAD: f"loads {self.register}",
            ADD: f"{'adds' if self.thread == 'A' else 'subtracts'} 1: {self.register}",
            STORE: f"stores {self.register}",
        }.get(self.step, "drops a name")
        return f"{self.thread} {what}"


@dataclass(frozen=True)
class Run:
    """One order of the steps, and what came of it.

    Args:
        order: whose turn it is, such as "AABBAB".
        moments: after each step: six of the race, then A's two drops.
        outcome: "right", "leak" or "freed while referenced".
    """

    order: str
    moments: tuple[Moment, ...]
    outcome: str


def orders() -> list[str]:
    """All ways to mix three steps of A and three of B; each thread keeps its own order. There are 20."""
    places = itertools.combinations(range(6), 3)
    return ["".join("A" if i in of_a else "B" for i in range(6)) for of_a in places]


def run(order: str) -> Run:
    """Play one order.

    Args:
        order: six letters, three "A" and three "B".

    Raises:
        ValueError: it is no such order.
    """
    if sorted(order) != list("AAABBB"):
        raise ValueError(f"an order has three A and three B, such as 'AABBAB', not {order!r}")
    count, names = 2, 2
    register = {"A": 0, "B": 0}
    done = {"A": 0, "B": 0}
    moments = []
    for thread in order:
        step = (LOAD, ADD, STORE)[done[thread]]
        done[thread] += 1
        if step == LOAD:
            register[thread] = count
        elif step == ADD:
            register[thread] += _CHANGE[thread]
        else:
            count = register[thread]
            names += _CHANGE[thread]
        moments.append(Moment(thread, step, register[thread], count, names, freed=False))
    freed = freed_early = False
    for _ in range(2):
        names -= 1
        if not freed:  # a real machine would now write into memory that belongs to somebody else
            count -= 1
            freed = count == 0
            freed_early = freed and names > 0
        moments.append(Moment("A", "drop", None, count, names, freed))
    outcome = FREED if freed_early else RIGHT if freed else LEAK
    return Run(order, tuple(moments), outcome)


def picture(played: Run, steps: int = 8) -> Picture:
    """The steps from left to right: what each thread does, the count in memory, the names that there are.

    Args:
        played: from ``run``.
        steps: draw only so many of the eight steps.
    """
    shown = played.moments[: max(0, min(steps, 8))]
    left, cell, top, row = 150, 92, 68, 44
    width, height = left + 9 * cell + 12, top + 4 * row + 66
    canvas = Canvas(width, height, f"Order {played.order}", _alt_text(played, shown))
    words = ("thread A", "thread B", "count in memory", "names there are")
    for i, word in enumerate(words):
        canvas.text(left - 12, top + i * row + row / 2 + 5, word, size=14, anchor="end")
    canvas.text(left + cell / 2, top - 10, "before", size=12, colour=palette.MUTED)
    canvas.line([(left + 7 * cell, top - 22), (left + 7 * cell, top + 4 * row)], palette.LINE, 1.2, dash="5 4")
    canvas.text(left + 7 * cell + 6, top - 26, "the race is over", size=12, anchor="start", colour=palette.MUTED)
    count, names = 2, 2
    _numbers(canvas, left, top + 2 * row, cell, row, count, names, False, False)
    for i, moment in enumerate(shown, start=1):
        x = left + i * cell
        canvas.text(x + cell / 2, top - 10, str(i), size=12, colour=palette.MUTED)
        what = str(moment)[2:].replace("adds 1: ", "+ 1 → ").replace("subtracts 1: ", "− 1 → ")
        fill = palette.PROCESS if moment.step == STORE else palette.DEVICE if moment.step != "drop" else palette.NODE
        y = top + (moment.thread == "B") * row
        bold = moment.step == STORE
        lines = ["drops", "a name"] if moment.step == "drop" else [what]
        canvas.box(x + 3, y + 3, cell - 6, row - 6, lines, fill=fill, size=13, bold=bold)
        wrong = moment.freed != (moment.names == 0)
        _numbers(canvas, x, top + 2 * row, cell, row, moment.count, moment.names, moment.freed, wrong)
    if len(shown) == 8:
        bad = played.outcome != RIGHT
        colour = palette.VERMILION if bad else palette.INK
        canvas.text(width / 2, height - 22, _ending(played.outcome), size=15, bold=True, colour=colour)
    return canvas.picture()


def _numbers(canvas: Canvas, x: float, y: float, cell: float, row: float, count: int, names: int, freed: bool,  # noqa: PLR0913
             wrong: bool) -> None:  # fmt: skip
    colour = palette.VERMILION if wrong else palette.INK
    canvas.text(x + cell / 2, y + row / 2 + 6, "freed" if freed else str(count), size=17, bold=True, colour=colour)
    canvas.text(x + cell / 2, y + row + row / 2 + 6, str(names), size=17, bold=True, colour=colour)
    if wrong:
        canvas.text(x + cell / 2 + 32, y + row / 2 + 6, "!", size=19, bold=True, colour=colour)


def _ending(outcome: str) -> str:
    return {
        RIGHT: "Right: it is freed with its last name.",
        LEAK: "Leak: there is no name left, and it will never be freed.",
        FREED: "Freed while referenced: A still has a name, for memory that is no longer its own.",
    }[outcome]


def _alt_text(played: Run, shown: tuple[Moment, ...]) -> str:
    told = "; ".join(
        f"{i}. {moment}, count {'freed' if moment.freed else moment.count}, names {moment.names}"
        for i, moment in enumerate(shown, start=1)
    )
    ending = f" {_ending(played.outcome)}" if len(shown) == 8 else ""
    before = f"Two threads change a reference count without a lock, order {played.order}. Before: count 2, names 2."
    return f"{before} {told}.{ending}"
