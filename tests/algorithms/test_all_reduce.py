"""The all-reduce algorithms on real gloo ranks: right sums, bytes and steps as the formulas say, clear errors."""

from __future__ import annotations

import math
import sys
from typing import Any

import cloudpickle
import pytest
import torch
import torch.distributed as dist

import utils
from lessons.algorithms.all_reduce import ALGORITHMS, Traffic, all_reduce
from lessons.pictures import all_reduce as pictures
from utils.hardware import links
from utils.hardware.links import Link, halving_all_reduce

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the functions here run on ranks

BYTES = Link("counts bytes", alpha_s=0.0, bytes_per_s=1.0, year=0, source="a test")
STEPS = Link("counts messages", alpha_s=1.0, bytes_per_s=math.inf, year=0, source="a test")
N = 8 * 9 * 5 * 7 * 4  # bytes of a float32 tensor that 1 to 8 ranks cut into equal parts


def on_all_ranks(function: Any, ranks: int, *args: Any, nodes: int = 1) -> list[Any]:
    return utils.launch(function, *args, ranks=ranks, nodes=nodes, backend="gloo", timeout=240, show_output=False)


# ---------------------------------------------------------------------- sums
SHAPES = [(0,), (1,), (2,), (3,), (7,), (8,), (1000,), (1001,), (5, 7), ()]
DTYPES = [torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8]


def wrong_sums(per_node: int) -> list[str]:
    """Every algorithm, shape and type on this world; what did not come out as on one process."""
    rank, p, wrong = dist.get_rank(), dist.get_world_size(), []
    for name in ALGORITHMS:
        for shape in SHAPES:
            for dtype in DTYPES:
                parts = [
                    torch.randint(0, 9, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
                    for seed in range(p)
                ]
                x = parts[rank].clone()
                all_reduce(x, name, per_node=per_node)
                if not torch.equal(x, sum(parts)) or x.dtype != dtype:  # whole numbers: exact in every order
                    wrong.append(f"{name} of {dtype} {shape}")
    return wrong


@pytest.mark.parametrize(("ranks", "per_node"), [(1, 1), (2, 2), (3, 1), (4, 2), (5, 5), (6, 3), (7, 7), (8, 2)])
def test_every_algorithm_gives_the_sum_for_any_world_size_length_and_type(ranks: int, per_node: int) -> None:
    assert on_all_ranks(wrong_sums, ranks, per_node) == [[]] * ranks


def floats_and_views() -> dict[str, Any]:
    rank, p = dist.get_rank(), dist.get_world_size()
    parts = [torch.randn(37, 11, generator=torch.Generator().manual_seed(seed)) for seed in range(p)]
    found: dict[str, Any] = {}
    for name in ALGORITHMS:
        x, gaps = parts[rank].clone(), torch.zeros(11, 37, 2)
        view = gaps[..., 0].t()  # neither rows nor columns lie together
        view.copy_(parts[rank])
        all_reduce(x, name, per_node=2)
        all_reduce(view, name, per_node=2)
        leaf = parts[rank].clone().requires_grad_()
        all_reduce(leaf, name, per_node=2)
        close = torch.allclose(x, torch.stack(parts).double().sum(0).float(), atol=1e-5)
        found[name] = x, close, torch.equal(view, x), not gaps[..., 1].any(), torch.equal(leaf, x)
    gloo = parts[rank].clone()
    dist.all_reduce(gloo)
    found["gloo"] = torch.allclose(gloo, found["ring"][0], atol=1e-5)
    return found


def test_floats_are_the_same_bits_on_all_ranks_and_views_keep_their_neighbours() -> None:
    zero, *others = on_all_ranks(floats_and_views, 6)
    assert zero["gloo"]
    for name in ALGORITHMS:
        assert zero[name][1:] == (True,) * 4, name
        assert all(torch.equal(zero[name][0], other[name][0]) for other in others), name


def some_ranks() -> tuple[float, float]:
    rank = dist.get_rank()
    x, y = torch.ones(5) * 10**rank, torch.ones(3)
    if rank in (3, 1, 4):
        all_reduce(x, "ring", ranks=[3, 1, 4])
        all_reduce(y, "tree", ranks=[3, 1, 4])
    return x[0].item(), y.sum().item()


def test_some_of_the_ranks_can_do_it_while_the_others_do_not_call() -> None:
    assert on_all_ranks(some_ranks, 5) == [(1, 3), (11010, 9), (100, 3), (11010, 9), (11010, 9)]


# ---------------------------------------------------------------------- bytes and steps
def traffic_of(name: str, per_node: int) -> Traffic:
    return all_reduce(torch.ones(N // 4), name, per_node=per_node)


def counted(ranks: int, per_node: int = 1) -> dict[str, list[Traffic]]:
    def every() -> dict[str, Traffic]:
        return {name: traffic_of(name, per_node) for name in ALGORITHMS}

    found = on_all_ranks(every, ranks)
    return {name: [one[name] for one in found] for name in ALGORITHMS}


FORMULAS = {
    "naive": links.naive_all_reduce,
    "tree": links.tree_all_reduce,
    "ring": links.ring_all_reduce,
    "halving": halving_all_reduce,
}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 8])
def test_counted_bytes_and_steps_are_those_of_the_formulas(ranks: int) -> None:
    found = counted(ranks)
    for name, formula in FORMULAS.items():
        assert max(one.steps for one in found[name]) == formula(N, ranks, STEPS), name
        assert max(one.in_a_row for one in found[name]) == formula(N, ranks, BYTES), name
        assert sum(one.sent for one in found[name]) == sum(one.received for one in found[name]), name
    for one in found["ring"]:
        assert one.sent == one.received == 2 * (ranks - 1) / ranks * N


@pytest.mark.parametrize(("ranks", "per_node"), [(4, 2), (6, 3), (8, 2), (8, 4)])
def test_hierarchical_keeps_its_bytes_inside_the_nodes_as_the_formula_says(ranks: int, per_node: int) -> None:
    nodes = ranks // per_node
    free = Link("free", alpha_s=0.0, bytes_per_s=math.inf, year=0, source="a test")
    for rank, one in enumerate(counted(ranks, per_node)["hierarchical"]):
        inside = sum(sent for to, sent in one.sent_to.items() if to // per_node == rank // per_node)
        # with as many cards as ranks no ring shares its card
        assert inside == links.hierarchical_all_reduce(N, nodes, per_node, BYTES, free, per_node)
        assert one.sent - inside == links.hierarchical_all_reduce(N, nodes, per_node, free, BYTES, per_node)
        assert one.steps == links.hierarchical_all_reduce(N, nodes, per_node, STEPS, STEPS, per_node)


# ---------------------------------------------------------------------- errors
def refusals(what: str) -> tuple[list[str], float]:
    """The message of each algorithm; then a good all-reduce, to see that the world still works."""
    rank, said = dist.get_rank(), []
    for name in ALGORITHMS:
        x = torch.ones(3 + (rank == 1), dtype=torch.float64 if what == "type" and rank == 2 else None)
        try:
            all_reduce(x if what == "length" else x[:3], name, per_node=1)
            said.append("nothing")
        except ValueError as error:
            said.append(str(error))
    x = torch.ones(2)
    all_reduce(x)
    return said, x.sum().item()


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
def test_unequal_lengths_are_an_error_on_every_rank_and_no_hang(ranks: int) -> None:
    have = ", ".join(f"rank {rank} has {3 + (rank == 1)} float32" for rank in range(ranks))
    sentence = f"all_reduce needs the same length and type on all ranks, but {have}"
    assert on_all_ranks(refusals, ranks, "length") == [([sentence] * len(ALGORITHMS), 2 * ranks)] * ranks


def test_unequal_types_are_an_error_on_every_rank() -> None:
    for said, total in on_all_ranks(refusals, 3, "type"):
        assert total == 6
        assert all(message.endswith("rank 1 has 3 float32, rank 2 has 3 float64") for message in said)


def nodes_of_the_launcher() -> int:
    return all_reduce(torch.ones(8), "hierarchical").steps


def test_the_launcher_says_how_many_ranks_a_node_has() -> None:
    assert on_all_ranks(nodes_of_the_launcher, 4, nodes=2) == [1 + 2 + 1] * 4
    assert on_all_ranks(nodes_of_the_launcher, 4, nodes=4) == [6] * 4


# ---------------------------------------------------------------------- the picture
def test_the_picture_shows_what_each_rank_holds_and_what_has_just_arrived() -> None:
    states = [[[1, 1], [10, 10]], [[1, 11], [11, 10]], [[11, 11], [11, 11]]]
    assert pictures.chunks(states, 0).alt == "At the start: rank 0 holds 1, 1; rank 1 holds 10, 10."
    assert pictures.chunks(states, 2).alt == "After step 2: rank 0 holds 11, 11; rank 1 holds 11, 11."
    assert pictures.chunks(states, 2).data.count(b"<polygon") == 2  # an arrow for each chunk that arrived
