"""The map of the course: its lectures in the stages in which they build on each other, drawn from the notebooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape

from course.outline import Lecture, lectures
from utils.draw import palette
from utils.draw.picture import Picture
from utils.draw.svg import Canvas

CARD_WIDTH, CARD_HEIGHT, GAP = 178, 110, 10
STAGE_WIDTH, STAGE_GAP, LEFT, TOP = 130, 20, 14, 48
CARDS_IN_A_ROW = 4
BAR_HEIGHT = 14
"""What a card grows by, for one box for each exercise of its lab."""


def course_map(course: Sequence[Lecture] | None = None, done: Mapping[str, tuple[int, int]] | None = None) -> Picture:
    """The lectures as cards, a row (or more) for each stage; stages follow each other from top to bottom.

    Args:
        course: the lectures in their order; those of the repository if not given.
        done: for the slug of a lab, how many of its exercises are done, and how many there are.
    """
    course = lectures() if course is None else course
    card_height, done = CARD_HEIGHT + (BAR_HEIGHT if done else 0), done or {}
    stages: dict[str, list[Lecture]] = {}
    for lecture in course:
        stages.setdefault(lecture.stage, []).append(lecture)
    alt = "The map of the course. " + " ".join(
        f"{name}: " + "; ".join(f"{one.number:02d} {one.title}{_count(done.get(one.slug))}" for one in members) + "."
        for name, members in stages.items()
    )
    columns = min(CARDS_IN_A_ROW, max(map(len, stages.values()), default=1))
    heights = [-(-len(members) // CARDS_IN_A_ROW) * (card_height + GAP) - GAP for members in stages.values()]
    width = LEFT + STAGE_WIDTH + 16 + columns * (CARD_WIDTH + GAP) + 4
    height = TOP + sum(heights) + len(stages) * STAGE_GAP - 6
    canvas = Canvas(width, height, "The map of the course", alt)
    y = TOP
    for (name, members), height in zip(stages.items(), heights, strict=True):
        if y > TOP:
            middle = LEFT + STAGE_WIDTH / 2
            canvas.line([(middle, y - STAGE_GAP + 1), (middle, y - 1)], palette.BLUE, 2.5, arrow="end")
        canvas.box(LEFT, y, STAGE_WIDTH, height, fill="#D6E9F5", stroke=palette.BLUE)
        canvas.paragraph(LEFT + 12, y + 26, name, STAGE_WIDTH - 18, size=14, bold=True)
        for index, lecture in enumerate(members):
            row, column = divmod(index, CARDS_IN_A_ROW)
            left, top = LEFT + STAGE_WIDTH + 16 + column * (CARD_WIDTH + GAP), y + row * (card_height + GAP)
            _card(canvas, left, top, lecture, card_height, done.get(lecture.slug, (0, 0)))
        y += height + STAGE_GAP
    return canvas.picture()


def _count(done: tuple[int, int] | None) -> str:
    return f" ({done[0]} of {done[1]} exercises done)" if done else ""


def linked_map(
    link: Callable[[Lecture], str],
    course: Sequence[Lecture] | None = None,
    done: Mapping[str, tuple[int, int]] | None = None,
) -> str:
    """The same map as HTML for pages: a row for each stage, in which every card is a picture and a link.

    (One picture cannot be clicked in parts: JupyterLab shows an SVG as ``<img>`` only.)

    Args:
        link: the address of a lecture. For the others, see ``course_map``.
    """
    course = lectures() if course is None else course
    card_height, done = CARD_HEIGHT + (BAR_HEIGHT if done else 0), done or {}
    rows: dict[str, list[str]] = {}
    for lecture in course:
        count = done.get(lecture.slug, (0, 0))
        alt = f"{lecture.number:02d} {lecture.title}{_count(done.get(lecture.slug))}"
        canvas = Canvas(CARD_WIDTH, card_height, alt, alt, heading=False)
        _card(canvas, 0, 0, lecture, card_height, count)
        rows.setdefault(lecture.stage, []).append(f'<a href="{escape(link(lecture))}">{canvas.picture().html}</a>')
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{" ".join(row)}</td></tr>' for name, row in rows.items()
    )
    return f"<table>{body}</table>"


def _card(canvas: Canvas, x: float, y: float, lecture: Lecture, height: float, done: tuple[int, int]) -> None:
    canvas.box(x, y, CARD_WIDTH, height, fill=palette.PROCESS)
    canvas.text(x + 10, y + 24, f"{lecture.number:02d}", size=17, anchor="start", bold=True, colour=palette.BLUE)
    under = canvas.paragraph(x + 38, y + 22, lecture.title, CARD_WIDTH - 44, size=14, bold=True)
    top = max(under + 2, y + 50)
    below = canvas.paragraph(x + 10, top, lecture.card, CARD_WIDTH - 14, size=12.5, colour=palette.MUTED)
    if below > y + CARD_HEIGHT + 10:
        raise ValueError(f"the title and the card of lecture {lecture.slug} are too long for the course map")
    for number in range(done[1]):
        colour = palette.GREEN if number < done[0] else palette.PANEL
        canvas.box(x + 10 + 20 * number, y + CARD_HEIGHT, 16, 8, fill=colour, radius=2)
