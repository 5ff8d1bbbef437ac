"""The picture of who gets which sample: what its words say, and what it refuses."""

import re
import xml.etree.ElementTree as ET

import pytest

from lessons.pictures.dealing import dealing
from lessons.training import feeding


def test_the_words_name_each_rank_and_what_was_dealt_again() -> None:
    picture = dealing({"epoch 0": [[0, 3], [1, 4], [2, 0]]}, 5)
    assert "rank 2 gets 2, 0." in picture.alt
    assert "Dealt again: 0." in picture.alt
    assert "Left out" not in picture.alt


def test_the_first_card_of_a_sample_is_the_one_that_is_used_first() -> None:
    picture = dealing({"": [[7, 5], [5, 6]]}, 8)  # rank 1 uses 5 in its first step, rank 0 in its second
    svg = picture.data.decode()
    assert re.findall(r'font-weight="bold"[^>]*>(\d+)<', svg) == ["5"]
    assert svg.index(">7</text>") < svg.index('font-weight="bold"', svg.index(">7</text>")) < svg.index(">6</text>")
    assert svg.index('font-weight="bold"', svg.index(">7</text>")) < svg.index(">rank 1</text>")


@pytest.mark.parametrize("length", [1, 2, 23, 24])
@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_every_deal_of_the_slider_can_be_drawn_and_is_the_same_twice(length: int, ranks: int) -> None:
    panels = {f"epoch {epoch}": feeding.deal(length, ranks, epoch, drop_last=epoch == 1) for epoch in range(2)}
    picture = dealing(panels, length, batch=2, title="Title", width=760)
    ET.fromstring(picture.data)
    assert picture.data == dealing(panels, length, batch=2, title="Title", width=760).data
