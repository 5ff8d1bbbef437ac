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
CASES = [one["case"] for one in resharding.cases(random.Random(0))]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["reshard"]))
def test_shards_hold_each_row_once(case):
    whole = resharding.whole_of(**case)
    store = make_store(whole, case["reshard"])
    assert len(set(store.files())) == case["reshard"].saved
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
    assert f"{len(CASES)} pairs of N and M" in TEXT
