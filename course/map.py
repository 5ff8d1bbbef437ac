"""The map of the course: its lectures in the stages in which they build on each other, drawn from the notebooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape

from course.outline import Lecture, lectures
from utils.draw import palette
from utils.draw.svg import Canvas

WIDTH, HEIGHT = 178, 110
BAR_HEIGHT = 14
"""What a card grows by, for one box for each exercise of its lab."""


def course_map(
    link: Callable[[Lecture], str] | None = None,
    course: Sequence[Lecture] | None = None,
    done: Mapping[str, tuple[int, int]] | None = None,
) -> str:
    """The map as HTML: a row for each stage, a card for each lecture, which is a picture of its own and may be a link.

    (One picture cannot be clicked in parts: JupyterLab shows an SVG as ``<img>`` only.)

    Args:
        link: the address of a lecture. None: nothing to click.
        course: the lectures in their order; those of the repository if not given.
        done: for the slug of a lab, how many of its exercises are done, and how many there are.

    Raises:
        ValueError: the words of a lecture do not fit on its card.
    """
    rows: dict[str, list[str]] = {}
    for lecture in lectures() if course is None else course:
        card = _card(lecture, *((done or {}).get(lecture.slug, (0, 0))), HEIGHT + (BAR_HEIGHT if done else 0))
        card = f'<a href="{escape(link(lecture))}">{card}</a>' if link else card
        rows.setdefault(lecture.stage, []).append(card)
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{" ".join(row)}</td></tr>' for name, row in rows.items()
    )
    return f"<table>{body}</table>"


def _card(lecture: Lecture, done: int, exercises: int, height: float) -> str:
    count = f" ({done} of {exercises} exercises done)" if exercises else ""
    alt = f"{lecture.number:02d} {lecture.title}{count}"
    canvas = Canvas(WIDTH, height, alt, alt, heading=False)
    canvas.box(0, 0, WIDTH, height, fill=palette.PROCESS)
    canvas.text(10, 24, f"{lecture.number:02d}", size=17, anchor="start", bold=True, colour=palette.BLUE)
    under = canvas.paragraph(38, 22, lecture.title, WIDTH - 44, size=14, bold=True)
    top = max(under + 2, 50.0)
    if canvas.paragraph(10, top, lecture.card, WIDTH - 14, size=12.5, colour=palette.MUTED) > HEIGHT + 10:
        raise ValueError(f"the title and the card of lecture {lecture.slug} are too long for the course map")
    for number in range(exercises):
        colour = palette.GREEN if number < done else palette.PANEL
        canvas.box(10 + 20 * number, HEIGHT, 16, 8, fill=colour, radius=2)
    return canvas.picture().html
