"""The α–β formulas against hand-counted numbers and a step-by-step simulation; the facts about links."""

import itertools

import pytest

from simgpu.time import nccl
from utils.hardware import links
from utils.hardware.links import Link

EASY = Link("easy", alpha_s=1.0, bytes_per_s=100.0, year=0, source="a test")  # 1 s a message, 0.01 s a byte


def test_hand_counted_times():
    # 400 bytes, 4 ranks: a message of all takes 1 + 4 = 5 s, one of a quarter 1 + 1 = 2 s.
    assert links.point_to_point(400, EASY) == pytest.approx(5)
    assert links.ring_all_reduce(400, 4, EASY) == pytest.approx(6 * 2)
    assert links.tree_all_reduce(400, 4, EASY) == pytest.approx(2 * 2 * 5)
    assert links.tree_all_reduce(400, 5, EASY) == pytest.approx(2 * 3 * 5), "five ranks need three levels"
    assert links.naive_all_reduce(400, 4, EASY) == pytest.approx(6 * 5)
    assert links.ring_reduce_scatter(400, 4, EASY) == pytest.approx(6)


def test_hierarchical_counted_by_hand():
    fast = Link("fast", alpha_s=0.0, bytes_per_s=1000.0, year=0, source="a test")
    # 2 nodes of 4, 400 bytes. Inside: 3 steps of 100 bytes, 0.1 s each, twice: 0.6 s.
    # Between: 4 rings of 2 ranks, 100 bytes each: 2 steps of 50 bytes. Alone: 1 + 0.5 s; with 4 at once: 1 + 2 s.
    assert links.hierarchical_all_reduce(400, 2, 4, fast, EASY, nics_per_node=4) == pytest.approx(0.6 + 2 * 1.5)
    assert links.hierarchical_all_reduce(400, 2, 4, fast, EASY, nics_per_node=2) == pytest.approx(0.6 + 2 * 2)
    assert links.hierarchical_all_reduce(400, 2, 4, fast, EASY) == pytest.approx(0.6 + 2 * 3)
    more_cards_than_ranks = links.hierarchical_all_reduce(400, 2, 4, fast, EASY, nics_per_node=8)
    assert more_cards_than_ranks == pytest.approx(0.6 + 2 * 1.5)


def test_the_slowest_link_rules_a_ring_through_all_nodes():
    fast = Link("fast", 0.0, 1e12, 0, "a test")
    late = Link("late, but wide", 10.0, 1e12, 0, "a test")  # for small messages latency makes the slowest link
    assert links.flat_ring_all_reduce(4, 2, 2, EASY, late) == pytest.approx(6 * 10, rel=1e-6)
    assert links.flat_ring_all_reduce(400, 4, 1, fast, EASY) == pytest.approx(links.ring_all_reduce(400, 4, EASY))
    flat = links.flat_ring_all_reduce(400, 2, 2, fast, EASY)
    assert flat == pytest.approx(links.ring_all_reduce(400, 4, EASY))
    assert links.flat_ring_all_reduce(400, 1, 4, fast, EASY) == pytest.approx(links.ring_all_reduce(400, 4, fast))


@pytest.mark.parametrize("arguments", [(-1, 4), (100, 0)])
def test_nonsense_is_refused(arguments):
    with pytest.raises(ValueError):
        links.ring_all_reduce(*arguments, EASY)
    with pytest.raises(ValueError):
        Link("broken", 0, 0, 0, "a test")


def test_every_link_names_its_sources_and_the_list_is_sorted():
    speeds = [link.bytes_per_s for link in links.ALL]
    assert speeds == sorted(speeds)
    assert len({link.name for link in links.ALL}) == len(links.ALL) == 12
    for link in links.ALL:
        assert link.source and link.alpha_source
        assert 2000 <= link.year <= 2030
        assert "assumed" in link.alpha_source or "NCCL" in link.alpha_source


def test_fit_finds_the_link_back():
    sizes = [1, 1_000, 100_000, 10_000_000]
    found = links.fit(sizes, [links.point_to_point(n, links.ETHERNET_25) for n in sizes])
    assert found.alpha_s == pytest.approx(50e-6, rel=1e-6)
    assert found.bytes_per_s == pytest.approx(3.125e9, rel=1e-6)


# --- What NCCL would choose ---------------------------------------------------------------------------------


def chosen(nbytes, nodes=1, per_node=8, name="all-reduce", inside=links.NVLINK4, cards=8):
    inside, network = inside.for_collectives(), links.INFINIBAND_NDR.for_collectives()
    return nccl.choose(name, nbytes, nodes, per_node, inside, network, cards)


def test_nccl_takes_quick_protocols_for_small_and_the_switch_for_large_messages():
    # S. Bekman, Machine Learning Engineering (2026), 8 × H200: ring with LL up to 1 MiB, NVLS from 2 MiB.
    assert chosen(2**10).protocol == "LL"
    assert chosen(2**10, nodes=16).algorithm == "tree", "fewer steps between many nodes"
    assert chosen(2**20).algorithm != "switch"
    assert chosen(2**26).algorithm == "switch"
    assert chosen(2**26, inside=links.NVLINK3).algorithm == "ring", "an A100's switch adds nothing up"
    assert chosen(2**26, per_node=4).algorithm == "ring", "the same source: rings up to four GPUs"
    assert chosen(2**26, name="all-gather").algorithm == "ring"


def test_a_choice_is_never_slower_than_another_protocol_or_algorithm_and_grows_with_the_message():
    times = [chosen(2**power, nodes).seconds for nodes in (1, 2, 16) for power in range(10, 34)]
    assert all(a <= b for nodes in range(3) for a, b in itertools.pairwise(times[24 * nodes : 24 * nodes + 24]))
    assert chosen(2**30, 16).seconds > chosen(2**30, 2).seconds > chosen(2**30, 1).seconds


def test_large_messages_reach_the_bandwidth_of_the_links():
    ring = chosen(2**33, inside=links.NVLINK3).seconds
    bus = 2 * 7 / 8 * 2**33 / ring
    assert bus == pytest.approx(235e9, rel=0.01), "what nccl-tests calls bus bandwidth, 8 × A100"
    half = chosen(2**33, nodes=4, cards=4).seconds / chosen(2**33, nodes=4, cards=8).seconds
    assert half == pytest.approx(2, rel=0.05), "with half as many network cards it takes twice as long"
