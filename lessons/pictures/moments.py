"""What is where at each moment and what a crash would leave, and what to ask first when a training run has failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from utils.draw import palette
from utils.draw.frame import EDGE, Frame
from utils.draw.palette import Role
from utils.draw.picture import Picture
from utils.draw.svg import Canvas, text_width, wrap

OLD = Role("old", palette.SKY_BLUE, "//")
HALF = Role("half", palette.VERMILION, "oo")
NEW = Role("new", palette.GREEN, "xx")
KINDS = {role.name: role for role in (OLD, HALF, NEW)}
ROW, HEAD, SIZE = 34, 26, 13  # pixels

Cell = str
"""What is there: "" nothing; a text that begins with old, half or new has that look; any other text is plain."""


def moments(
    columns: Sequence[str],
    rows: Mapping[str, Sequence[Cell]],
    left_by: Sequence[str] = (),
    title: str = "",
    caption: str = "",
    width: int = 900,
) -> Picture:
    """A grid of what is where. Neighbours with the same text are one box: it lasts.

    Args:
        columns: what happens at each moment, from left to right.
        rows: place → what is there after each of these moments.
        left_by: what a crash right after each moment would leave; none: no such row.
        title: heading.
        caption: below.
        width: pixels.

    Raises:
        ValueError: a row that does not have a cell for each moment, or a text that is too long.
    """
    all_rows = dict(rows)
    if left_by:
        all_rows["killed now: loads"] = left_by
    for name, cells in all_rows.items():
        if len(cells) != len(columns):
            raise ValueError(f"{name!r} has {len(cells)} cells for {len(columns)} moments")
    used = [role for word, role in KINDS.items() if any(_kind(c) == word for cells in rows.values() for c in cells)]
    names = max(text_width(name, SIZE, bold=True) for name in all_rows) + 14
    column = (width - 2 * EDGE - names) / len(columns)
    frame = Frame(width, title, caption, used)
    canvas = frame.canvas(HEAD + ROW * len(all_rows), _alt_text(columns, rows, left_by), "What is where")
    left, y = EDGE + names, frame.top + HEAD
    for number, word in enumerate(columns):
        if text_width(word, SIZE) > column:
            raise ValueError(f"{word!r} does not fit above its column")
        canvas.text(left + (number + 0.5) * column, frame.top + 16, word, SIZE, colour=palette.MUTED)
    for number in range(len(columns) + 1):
        x = left + number * column
        canvas.line([(x, frame.top + HEAD), (x, frame.top + HEAD + ROW * len(all_rows))], "#DDDDDD", 1)
    for name, cells in all_rows.items():
        canvas.text(left - 10, y + ROW / 2 + 5, name, SIZE, anchor="end", bold=True)
        start = 0
        for end in range(1, len(cells) + 1):
            if end < len(cells) and cells[end] == cells[start] and name in rows:
                continue
            if text := cells[start]:
                x, wide = left + start * column, (end - start) * column
                role = KINDS.get(_kind(text)) if name in rows else None
                look = {"role": role, "plate": True} if role else {"fill": palette.PANEL, "bold": name not in rows}
                canvas.box(x + 2, y + 3, wide - 4, ROW - 6, text, size=SIZE, radius=4, **look)
            start = end
        y += ROW
    return canvas.picture()


def _kind(text: str) -> str:
    return text.split(",")[0].split(" ")[0]


def _alt_text(columns: Sequence[str], rows: Mapping[str, Sequence[Cell]], left_by: Sequence[str]) -> str:
    sentences = []
    for number, word in enumerate(columns):
        there = "; ".join(f"{name}: {cells[number] or 'nothing'}" for name, cells in rows.items())
        sentences.append(f"{word}: {there}" + (f"; killed now, {left_by[number]} loads" if left_by else "") + ".")
    return " ".join(sentences)


def decisions(title: str, steps: Sequence[tuple[str, str]], otherwise: str) -> Picture:
    """Questions to ask one after the other: to the right what to do if the answer is yes, below what to ask if no.

    Args:
        title: the heading.
        steps: (question, what to do if yes), the first one first.
        otherwise: what to do if no answer was yes.
    """
    left, width, answer, high, step = 20, 370, 470, 58, 78
    told = " ".join(f"{question} If yes: {todo}" for question, todo in steps)
    canvas = Canvas(930, 66 + step * len(steps) + 50, title, f"{title} {told} If none of these: {otherwise}")
    for number, (question, todo) in enumerate(steps):
        top = 54 + number * step
        canvas.box(left, top, width, high, wrap(question, width - 16, 14, bold=True), palette.PROCESS, bold=True)
        canvas.line([(left + width, top + high / 2), (answer, top + high / 2)], palette.GREEN, arrow="end")
        canvas.text((left + width + answer) / 2, top + high / 2 - 6, "yes", size=13, colour=palette.GREEN, bold=True)
        canvas.box(answer, top, 440, high, wrap(todo, 424, 13), size=13)
        canvas.line([(left + 60, top + high), (left + 60, top + step)], palette.MUTED, arrow="end")
        canvas.text(left + 82, top + high + 15, "no", size=13, colour=palette.MUTED)
    top = 54 + len(steps) * step
    canvas.box(left, top, 890, 40, wrap(otherwise, 870, 13), size=13)
    return canvas.picture()
