"""The newer names of torch.distributed under a torch that lacks them."""

from __future__ import annotations

import pytest

from utils.ranks import launch, newer


def _gathered() -> list[float]:
    import torch
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as functional

    mine, whole = torch.full((1,), float(dist.get_rank())), torch.empty(2)
    dist.all_gather_single(whole, mine)
    part = torch.empty(1)
    dist.reduce_scatter_single(part, whole)
    again = functional.all_gather_single_autograd(mine, 0, dist.group.WORLD)
    return [*whole.tolist(), *part.tolist(), *again.tolist()]


def test_every_rank_has_the_newer_names_whatever_torch() -> None:
    assert launch(_gathered, ranks=2) == [[0, 1, 0, 0, 1], [0, 1, 2, 0, 1]]


@pytest.mark.parametrize(("installed", "older"), [("2.9.1+cu128", True), ("2.13.0", False), ("3.0.0a0+git", False)])
def test_versions_are_compared_by_number(monkeypatch: pytest.MonkeyPatch, installed: str, older: bool) -> None:
    monkeypatch.setattr(newer, "version", lambda name: installed)
    assert newer.older_than(2, 13) is older


def test_an_older_torch_gets_the_newer_names_and_a_newer_one_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist

    monkeypatch.setattr(newer, "version", lambda name: "2.11.0")
    kept = dist.all_gather_into_tensor
    monkeypatch.delattr(dist, "all_gather_single", raising=False)
    newer.add_names()
    assert dist.all_gather_single is kept
