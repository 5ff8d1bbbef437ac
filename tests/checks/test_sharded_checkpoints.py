"""Under the checks of sharded checkpoints: the store that counts, and what the lab's text says."""

from __future__ import annotations

import itertools
import random

import nbformat
import pytest

from checks.sharded_checkpoints import resharding
from checks.sharded_checkpoints.sharded_store import Reshard, make_store, tensors
from course import outline

TEXT = " ".join(
    "\n".join(
        cell.source for cell in nbformat.read(outline.notebook("sharded_checkpoints", "solutions"), as_version=4).cells
    ).split()
)
DRAWN = resharding.draw(random.Random(0))
CASES = [Reshard(*case["reshard"]) for case in DRAWN]


@pytest.mark.parametrize("case", [case for case in CASES if case.seed is None], ids=str)
def test_ranks_together_need_each_byte_once(case):
    whole = tensors()
    store = make_store(whole, case)
    needs = [resharding.needed(whole, case, rank) for rank in range(case.loaded)]
    total = sum(tensor.nbytes for tensor in whole.values())
    assert sum(one["bytes"] for need in needs for one in need.values()) == total
    for name, tensor in whole.items():
        rows = sorted(store.index(file)[name]["rows"] for file in store.files())
        assert rows[0][0] == 0 and rows[-1][1] == len(tensor)
        assert all(one[1] == other[0] for one, other in itertools.pairwise(rows))


def test_cases_have_empty_shards_and_names_whose_order_is_not_that_of_the_rows():
    whole = tensors()
    uneven = make_store(whole, Reshard(4, 3, True))
    assert uneven.index("shard-1")["embedding"]["rows"] == [11, 11]
    assert sorted(make_store(whole, Reshard(11, 2)).files())[2] == "shard-10"
    assert any(case.loaded > len(whole["few"]) for case in CASES)


@pytest.mark.parametrize(("drawn", "case"), [(a, b) for a, b in zip(DRAWN, CASES, strict=True) if b.seed is not None])
def test_shards_that_are_cut_anywhere_hold_each_row_once(drawn, case):
    whole = resharding.whole_of(drawn)
    store = make_store(whole, case)
    assert len(set(store.files())) == case.saved
    for name, tensor in whole.items():
        rows = sorted(store.index(file)[name]["rows"] for file in store.files())
        assert rows[0][0] == 0 and rows[-1][1] == len(tensor)
        assert all(one[1] == other[0] for one, other in itertools.pairwise(rows))


def test_the_text_of_the_lab_tells_the_right_counts():
    whole, case = tensors(), CASES[0]
    pieces = [one for rank in range(2) for one in resharding.needed(whole, case, rank).values()]
    total, reads = sum(one["bytes"] for one in pieces), sum(one["pieces"] for one in pieces)
    assert f"4 → 2: {total:,} bytes read by both ranks together, in {reads} reads at most" in TEXT
    assert f"{sum(case.seed is None for case in CASES)} pairs of N and M" in TEXT
