"""Under the checks: the mistakes that they know, launches that are broken as they say, groups that all ranks make."""

from __future__ import annotations

import random

import pytest

from checks.single_vs_multi_node import places, repairs, times
from utils.hardware import links

CLUSTERS = [cluster for seed in range(3) for cluster in times.draw(random.Random(seed))[0]["clusters"]]
TOPOLOGIES = (
    (1e8, 1, 8, links.NVLINK4, links.ETHERNET_25),
    (1e8, 2, 2, links.NVLINK4, links.ETHERNET_25),
    (1e8, 3, 1, links.NVLINK4, links.ETHERNET_10),
    (1e8, 2, 8, links.PCIE3, links.INFINIBAND_NDR),
    (4_096, 4, 8, links.NVLINK3, links.INFINIBAND_HDR),
    (1e9, 16, 4, links.PCIE4, links.ETHERNET_100),
    (1e6, 1, 1, links.PCIE4, links.ETHERNET_100),
)


def _data_sheets(inside, between):
    """Two links as data sheets print them: NVLink and PCIe with both directions added up, networks in bits."""
    return (
        {"alpha_us": 1e6 * inside.alpha_s, "GB_per_s_both_directions": inside.both_directions_bytes_per_s / 1e9},
        {"alpha_us": 1e6 * between.alpha_s, "Gbit_per_s": between.bytes_per_s * 8 / 1e9},
    )


def test_without_a_mistake_the_formulas_are_those_of_the_course():
    for nbytes, nodes, per_node, *both in TOPOLOGIES:
        case = nbytes, nodes, per_node, *_data_sheets(*both)
        assert times.ring(*case) == pytest.approx(links.flat_ring_all_reduce(nbytes, nodes, per_node, *both))
        assert times.levels(*case) == pytest.approx(links.hierarchical_all_reduce(nbytes, nodes, per_node, *both))


@pytest.mark.parametrize(
    ("formula", "mistakes"), [(times.ring, times.RING_MISTAKES), (times.levels, times.LEVEL_MISTAKES)]
)
def test_every_mistake_is_far_from_right_somewhere_and_unlike_the_others(formula, mistakes):
    right = [formula(*case) for case in CLUSTERS]
    made = {sentence: [formula(*case, **how) for case in CLUSTERS] for sentence, how in mistakes.items()}
    for sentence, values in made.items():
        assert any(abs(v - r) > 1e-3 * r for v, r in zip(values, right, strict=True)), sentence
        assert [other for other, others in made.items() if others == pytest.approx(values, rel=1e-4)] == [sentence]


def test_places_and_cards_are_all_places_once():
    counts = [3, 1, 2]
    assert places.places(counts) == [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1)]
    assert places.like_cards(counts) == [(0, 0), (1, 0), (2, 0), (0, 1), (2, 1), (0, 2)]


@pytest.mark.parametrize("seed", range(5))
def test_drawn_launches_differ_from_the_right_ones_where_they_should(seed):
    cases = repairs.draw(random.Random(seed))
    same = [case["mistake"] for case in cases if case["before"][0] == case["right"][0]]
    assert "no mistake" in same and set(same) <= {"no mistake", "anything", "other ports"}
    for case in cases:
        assert len(case["before"]) == len(case["right"]) == len(repairs.TURNS)
        for before, right in zip(case["before"], case["right"], strict=True):
            assert before[0]["MASTER_PORT"] == right[0]["MASTER_PORT"]
            assert [one["NODE_ADDR"] for one in before] == [one["NODE_ADDR"] for one in right]
