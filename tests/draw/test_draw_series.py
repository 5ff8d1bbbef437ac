"""Figures with sliders and without a kernel: every picture is there, the first first, and sliders find theirs."""

from __future__ import annotations

import html
import json
import re

import pytest

from utils import draw
from utils.draw.picture import from_svg


def _picture(stages: int = 0, schedule: str = "") -> draw.Picture:
    return from_svg(f"<svg>{stages}{schedule}</svg>", f"{stages} stages by {schedule}")


def _series() -> draw.Series:
    return draw.series(
        _picture, stages=[2, 4, 8], schedule={"all forward": "gpipe", "1F1B": "1f1b"}, start={"stages": 4}
    )


def test_every_combination_is_drawn_in_the_order_in_which_sliders_count():
    pictures = _series().pictures
    assert [picture.alt for picture in pictures] == [
        f"{stages} stages by {schedule}" for stages in (2, 4, 8) for schedule in ("gpipe", "1f1b")
    ]


def test_without_a_script_the_first_picture_is_seen_and_the_others_are_in_a_fold_with_their_words():
    shown = _series().html
    before, fold = shown.split("<details>")
    assert re.findall(r'alt="([^"]+)"', before) == ["4 stages by gpipe"]
    assert "<p>stages: 4, schedule: all forward</p>" in before
    assert len(re.findall("<img ", fold.split("</details>")[0])) == 5
    assert "the other 5 pictures" in fold and "<p>stages: 8, schedule: 1F1B</p>" in fold


def test_sliders_and_pictures_count_alike():
    shown = _series().html
    sliders = json.loads(html.unescape(re.search(r'data-choices="([^"]+)"', shown)[1]))
    assert sliders == [
        {"name": "stages", "values": ["2", "4", "8"], "start": 1},
        {"name": "schedule", "values": ["all forward", "1F1B"], "start": 0},
    ]
    numbers = {int(n): alt for n, alt in re.findall(r'data-number="(\d+)">.*?alt="([^"]+)"', shown)}
    assert numbers[1 * 2 + 0] == "4 stages by gpipe" and numbers[2 * 2 + 1] == "8 stages by 1f1b" and len(numbers) == 6


@pytest.mark.parametrize("choices", [{}, {"stages": []}, {"stages": [1, 2], "start": {"stages": 3}}])
def test_what_cannot_be_chosen_is_refused(choices):
    with pytest.raises(ValueError, match=r"series|none of 1, 2"):
        draw.series(_picture, **choices)
