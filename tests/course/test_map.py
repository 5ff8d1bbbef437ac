"""The map of the course, for as many lectures as there may be."""

from __future__ import annotations

import re

import pytest

from course.map import CARDS_IN_A_ROW, course_map
from course.outline import Lecture, lectures
from utils.draw import palette

STAGES = (
    ["Find your way"] * 2 + ["Split"] * 3 + ["Add up"] * 2 + ["Train"] * 4 + ["Fit a large model"] * 6 + ["End"] * 4
)
MANY = [
    Lecture(number, f"slug_{number}", f"Parameter server {number}", stage, "ring, tree, hierarchy", "x", "", True)
    for number, stage in enumerate(STAGES)
]


def boxes(svg: str) -> list[tuple[float, ...]]:
    """x, y, width, height of every box, the page itself first."""
    return [
        tuple(float(re.search(rf' {key}="([^"]+)"', rect)[1]) for key in ("x", "y", "width", "height"))
        for rect in re.findall(r"<rect [^>]*>", svg)
    ]


@pytest.mark.parametrize("course", [MANY, MANY[:1], lectures()], ids=["21", "1", "today's"])
def test_every_lecture_has_a_card_inside_the_map_and_none_covers_another(course):
    picture = course_map(course)
    page, *inside = boxes(picture.data.decode())
    assert len(inside) == len(course) + len({lecture.stage for lecture in course})
    for x, y, width, height in inside:
        assert page[0] <= x and x + width <= page[2] and page[1] <= y and y + height <= page[3]
    for number, (x, y, width, height) in enumerate(inside):
        for x2, y2, width2, height2 in inside[:number]:
            assert x >= x2 + width2 or x2 >= x + width or y >= y2 + height2 or y2 >= y + height
    for lecture in course:
        assert f"{lecture.number:02d} {lecture.title}" in picture.alt
    assert page[2] < 1000, "wider than a notebook's page"


def test_a_long_stage_goes_on_in_the_next_row():
    tops = {y for _, y, width, _ in boxes(course_map(MANY).data.decode())[1:] if width > 150}
    assert len(tops) == 7 and STAGES.count("Fit a large model") > CARDS_IN_A_ROW


def test_a_card_with_too_many_words_is_an_error():
    wordy = Lecture(1, "toy", "Toy", "Play", "many words " * 9, "x", "", False)
    with pytest.raises(ValueError, match="lecture toy are too long"):
        course_map([wordy])


def test_what_is_done_is_seen_as_boxes_and_said():
    lab, other = MANY[0], MANY[1]
    picture = course_map(MANY[:2], {lab.slug: (2, 5)})
    svg = picture.data.decode()
    small = [rect for rect in re.findall(r"<rect [^>]*>", svg) if 'width="16"' in rect]
    assert len(small) == 5 and sum(palette.GREEN in rect for rect in small) == 2
    assert f"{lab.title} (2 of 5 exercises done)" in picture.alt and f"{other.title}." in picture.alt
