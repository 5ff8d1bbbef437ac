"""An all-reduce, step by step: which chunk every rank holds, and how complete it is."""

from __future__ import annotations

from collections.abc import Sequence

from utils.draw import palette
from utils.draw.frame import EDGE, Frame
from utils.draw.palette import Role
from utils.draw.picture import Picture

OWN = Role("only its own", palette.GREY, "..")
PART = Role("a part of the sum", palette.ORANGE, "\\\\")
WHOLE = Role("the whole sum", palette.GREEN, "xx")
CAPTION = "Rows are ranks, columns are chunks. A bold frame: it has just arrived."

State = Sequence[Sequence[int]]
"""What each rank's chunks hold: ``state[rank][chunk]``, whole numbers."""


def chunks(
    states: Sequence[State], step: int | None = None, title: str = "", caption: str = CAPTION, width: int = 900
) -> Picture:
    """The states of an all-reduce as grids of numbers; what has changed since the state before is framed.

    Args:
        states: the state at the start, and after each step.
        step: draw this one only, large, with arrows from the left neighbour of each rank that received. None: draw all.
        title: heading.
        caption: below the picture.
        width: of the picture.
    """
    ranks, columns = len(states[0]), len(states[0][0])
    chosen = list(range(len(states))) if step is None else [step]
    per_row = min(len(chosen), 4)
    names = 58  # pixels for "rank 3"
    room = (width - 2 * EDGE - names - 18 * (per_row - 1)) / per_row
    cell_width = min(150.0, room / columns)
    cell_height = 26.0 if step is None else 40.0
    gap = 0 if step is None else 22  # between the rows, for the arrows
    panel = 26 + ranks * (cell_height + gap) + 14
    rows = -(-len(chosen) // per_row)
    frame = Frame(width, title, caption, (OWN, PART, WHOLE))
    canvas = frame.canvas(rows * panel, _alt_text(states, chosen), "All-reduce, step by step")
    left = EDGE + names + (width - 2 * EDGE - names - per_row * (columns * cell_width + 18) + 18) / 2
    for index, number in enumerate(chosen):
        x0 = left + (index % per_row) * (columns * cell_width + 18)
        y0 = frame.top + index // per_row * panel + 20
        canvas.text(x0 + columns * cell_width / 2, y0 - 5, f"after step {number}" if number else "at the start", 13)
        for rank in range(ranks):
            y = y0 + rank * (cell_height + gap)
            if index % per_row == 0:
                canvas.text(x0 - 8, y + cell_height / 2 + 5, f"rank {rank}", 13, anchor="end")
            for chunk in range(columns):
                value, new = states[number][rank][chunk], _changed(states, number, rank, chunk)
                x, role = x0 + chunk * cell_width, _role(states, value, rank, chunk)
                look = {"stroke": palette.INK, "stroke_width": 3.0} if new else {"stroke_width": 0.8}
                inset = 1.5
                canvas.box(
                    *(x + inset, y + inset, cell_width - 2 * inset, cell_height - 2 * inset),
                    *(str(value), palette.DEVICE, role),
                    size=11 if step is None else 15, bold=new, radius=3, plate=True, **look,
                )  # fmt: skip
                if new and step is not None:
                    middle, above = x + cell_width / 2, y - gap
                    canvas.line([(middle, above if rank else y - 14), (middle, y)], width=2.2, arrow="end")
                    if not rank:  # from the last rank around to the first
                        bottom = y0 + ranks * (cell_height + gap) - gap
                        canvas.line([(middle, bottom), (middle, bottom + 14)], width=2.2)
    return canvas.picture()


def _role(states: Sequence[State], value: int, rank: int, chunk: int) -> Role:
    if value == sum(row[chunk] for row in states[0]):
        return WHOLE
    return OWN if value == states[0][rank][chunk] else PART


def _changed(states: Sequence[State], number: int, rank: int, chunk: int) -> bool:
    return number > 0 and states[number][rank][chunk] != states[number - 1][rank][chunk]


def _alt_text(states: Sequence[State], chosen: Sequence[int]) -> str:
    sentences = []
    for number in chosen:
        grid = "; ".join(
            f"rank {rank} holds {', '.join(map(str, row))}" for rank, row in enumerate(states[number])
        )  # fmt: skip
        sentences.append(f"{f'After step {number}' if number else 'At the start'}: {grid}.")
    return " ".join(sentences)
