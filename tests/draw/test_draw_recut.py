"""The picture of rows that are cut anew: each row once, bands from the right file to the right rank."""

import pytest

from lessons.pictures.dealing import recut, shares


def test_shares_are_as_even_as_can_be_and_the_first_ones_have_one_more():
    assert shares(10, 4) == [range(3), range(3, 6), range(6, 8), range(8, 10)]


def test_it_says_which_rank_reads_which_rows_of_which_file():
    assert recut(10, 4, 2).alt == (
        "Rank 0 reads rows 0–2 of file 0, 3–4 of file 1. Rank 1 reads rows 5 of file 1, 6–7 of file 2, 8–9 of file 3."
    )


@pytest.mark.parametrize(("saved", "loaded", "bands"), [(4, 2, 5), (4, 3, 6), (2, 2, 2), (1, 5, 5), (10, 10, 10)])
def test_a_band_for_each_read(saved, loaded, bands):
    assert recut(10, saved, loaded, title="Title").data.count(b"<path d=") == bands
