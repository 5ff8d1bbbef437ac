"""The grid of what is where at each moment: what lasts is one box, and its words say all that it shows."""

import pytest

from lessons.pictures.moments import moments

COLUMNS = ["write", "rename", "done"]


def test_it_says_in_words_what_is_where_and_what_a_kill_leaves():
    picture = moments(COLUMNS, {"a": ["old", "new", "new"], "b": ["half", "", ""]}, left_by=["old", "new", "new"])
    assert picture.alt == (
        "write: a: old; b: half; killed now, old loads. rename: a: new; b: nothing; killed now, new loads. "
        "done: a: new; b: nothing; killed now, new loads."
    )


def test_what_lasts_is_one_box_and_what_a_kill_leaves_is_said_for_each_moment():
    boxes = [moments(COLUMNS, {"a": cells}).data.count(b">new<") for cells in (["new"] * 3, ["new", "", "new"])]
    assert [count - 1 for count in boxes] == [1, 2]  # (one more in the legend)
    assert moments(COLUMNS, {"a": ["x"] * 3}, left_by=["y"] * 3).data.count(b">y<") == 3


def test_a_cell_for_each_moment_and_words_that_fit_are_asked_for():
    with pytest.raises(ValueError, match="'a' has 2 cells for 3 moments"):
        moments(COLUMNS, {"a": ["x", "y"]})
    with pytest.raises(ValueError, match="does not fit above its column"):
        moments(["word " * 40], {"a": ["x"]})
