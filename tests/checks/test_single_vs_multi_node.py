"""Under the checks: the mistakes that it knows, and launches that really meet or really do not."""

from __future__ import annotations

import pytest

from utils.checks import Wrong, run, single_vs_multi_node
from utils.checks.single_vs_multi_node import probes
from utils.hardware import links

CASES = [
    (n, nodes, per_node, *single_vs_multi_node.data_sheet(*both))
    for n, nodes, per_node, *both in single_vs_multi_node.TOPOLOGIES
]


def test_without_a_mistake_the_formulas_are_those_of_the_course():
    for topology, case in zip(single_vs_multi_node.TOPOLOGIES, CASES, strict=True):
        assert single_vs_multi_node._ring(*case) == pytest.approx(links.flat_ring_all_reduce(*topology))
        assert single_vs_multi_node._levels(*case) == pytest.approx(links.hierarchical_all_reduce(*topology))


@pytest.mark.parametrize(
    ("formula", "mistakes"),
    [
        (single_vs_multi_node._ring, single_vs_multi_node._RING_MISTAKES),
        (single_vs_multi_node._levels, single_vs_multi_node._LEVEL_MISTAKES),
    ],
    ids=["ring", "levels"],
)
def test_every_mistake_is_far_from_right_somewhere_and_unlike_the_others(formula, mistakes):
    right = [formula(*case) for case in CASES]
    made = {sentence: [formula(*case, **how) for case in CASES] for sentence, how in mistakes.items()}
    for sentence, values in made.items():
        assert any(abs(v - r) > single_vs_multi_node.TOLERANCE * r for v, r in zip(values, right, strict=True)), (
            sentence
        )
        alike = [other for other, others in made.items() if others == pytest.approx(values, rel=0.002)]
        assert alike == [sentence]


@pytest.mark.parametrize("mistake", ["own_address", "counted_on_each_node"])
def test_a_broken_launch_really_does_not_meet(mistake):
    with pytest.raises(Wrong, match=r"the ranks do not meet|was not finished"):
        run(probes.start_repaired, list, mistake, ranks=4, nodes=2, timeout=40)  # list() repairs nothing


def test_hidden_launches_differ_from_the_right_ones_where_they_should():
    launches = probes.broken_launches()
    assert [name for name, broken, right in launches if broken == right] == ["a launch without any mistake"]
