"""Under the checks of sharded checkpoints: the files of the store, and what the lab's text says."""

from __future__ import annotations

import itertools

import nbformat
import pytest

from checks.labs.sharded_checkpoints import other_ranks, resharding, thread_errors
from checks.labs.sharded_checkpoints.sharded_store import Reshard, make_store, tensors
from course import outline

TEXT = " ".join(
    "\n".join(
        cell.source for cell in nbformat.read(outline.notebook("sharded_checkpoints", "solutions"), as_version=4).cells
    ).split()
)


@pytest.mark.parametrize("case", [case["saved_by"] for case in resharding.CASES], ids=str)
def test_shards_hold_each_row_once(case):
    whole = tensors()
    store = make_store(whole, case)
    assert len(set(store.files())) == case.saved
    for name, tensor in whole.items():
        rows = sorted(store.index(file)[name]["rows"] for file in store.files())
        assert rows[0][0] == 0 and rows[-1][1] == len(tensor)
        assert all(one[1] == other[0] for one, other in itertools.pairwise(rows))


def test_the_text_of_the_lab_tells_the_right_counts():
    whole, (load,), case = tensors(), resharding.OFFICIAL.functions(), Reshard(4, 2)
    stores = [make_store(whole, case) for _ in range(2)]
    for rank, store in enumerate(stores):
        load(store, rank, 2)
    reads = [size for store in stores for *_, size in store.reads]
    assert f"4 → 2: {sum(reads):,} bytes read by both ranks together, in {len(reads)} reads at most" in TEXT
    assert f"{len(resharding.CASES)} pairs of N and M" in TEXT
    assert len(thread_errors.CASES) == 5 and "errors of five kinds" in TEXT
    assert len(other_ranks.CASES) == 3 and "three pairs of N and M, such as 4 → 3 and 2 → 4" in TEXT
