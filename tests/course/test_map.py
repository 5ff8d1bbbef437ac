"""The map of the course, for as many lectures as there may be."""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ET

import pytest

from course.map import course_map
from course.outline import Lecture, lectures
from utils.draw import palette

STAGES = ["Find your way"] * 2 + ["Split"] * 3 + ["Fit a large model"] * 6
MANY = [
    Lecture(number, f"slug_{number}", f"Parameter server {number}", stage, "ring, tree, hierarchy", "x", "", True)
    for number, stage in enumerate(STAGES)
]


def cards(html: str) -> list[str]:
    """The SVG of every card."""
    return [base64.b64decode(data).decode() for data in re.findall(r"base64,([^\"]+)", html)]


@pytest.mark.parametrize("course", [MANY, MANY[:1], lectures()], ids=["11", "1", "today's"])
def test_every_lecture_has_a_card_in_the_row_of_its_stage_and_leads_to_it(course):
    html = course_map(lambda one: f"here/{one.name}?a&b", course)
    table = ET.fromstring(re.sub(r"(<img [^>]*)>", r"\1/>", html))
    stages = list(dict.fromkeys(one.stage for one in course))
    assert [row.findtext("th") for row in table] == stages
    for row, stage in zip(table, stages, strict=True):
        members = [one for one in course if one.stage == stage]
        assert [link.get("href") for link in row.iter("a")] == [f"here/{one.name}?a&b" for one in members]
        assert [image.get("alt") for image in row.iter("img")] == [f"{one.number:02d} {one.title}" for one in members]
    assert len(cards(course_map(course=course))) == len(course) and "<a " not in course_map(course=course)


def test_what_is_done_is_seen_as_boxes_and_said():
    html = course_map(course=MANY[:2], done={MANY[0].slug: (2, 5)})
    lab, other = cards(html)
    small = [rect for rect in re.findall(r"<rect [^>]*>", lab) if 'width="16"' in rect]
    assert len(small) == 5 and sum(palette.GREEN in rect for rect in small) == 2
    assert f"{MANY[0].title} (2 of 5 exercises done)" in html and f'{MANY[1].title}"' in html
    assert 'width="16"' not in other
