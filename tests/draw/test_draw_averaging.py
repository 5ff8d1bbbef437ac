"""The picture of one step of data parallelism: it shows the numbers that it was given, step by step."""

import xml.etree.ElementTree as ET

from lessons.pictures.start_here import averaging
from utils.draw.picture import Picture

SEEN = [(0.5, own, 0.25) for own in (-1.0, 0.0, 1.0, 1.0)]


def words(picture: Picture) -> list[str]:
    return [text.text for text in ET.fromstring(picture.data).iter("{http://www.w3.org/2000/svg}text")]


def test_each_step_adds_what_the_ranks_hold_then():
    start, own, mean, end = (words(averaging(SEEN, step)) for step in (1, 2, 3, 4))
    assert start.count("w = 0.5000") == 4 and "+1.0000" not in start
    assert own.count("−1.0000") == 1 and own.count("+1.0000") == 2 and "+0.2500" not in own
    assert "all-reduce, divided by 4: +0.2500" in mean and "w = 0.4750" not in mean
    assert end.count("w = 0.4750") == 4
    assert averaging(SEEN, 2).alt.endswith("rank 0: −1.0000; rank 1: +0.0000; rank 2: +1.0000; rank 3: +1.0000.")


def test_means_that_differ_are_not_shown_as_one():
    seen = [(0.5, 1.0, 0.25), (0.5, 1.0, 0.75)]
    assert "all-reduce, divided by 2: +0.2500, +0.7500" in words(averaging(seen, 3))
