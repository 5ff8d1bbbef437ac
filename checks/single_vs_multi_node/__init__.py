"""The exercises of this lab: ranks and nodes, process groups, the time of an all-reduce, broken launches.

places.py      ranks_and_back: from a place to a rank and back
groups.py      groups_of_nodes: process groups that all ranks make
two_levels.py  levels_with_groups: an all-reduce in these groups
times.py       all_reduce_times: what an all-reduce costs, and what mistakes would give
repairs.py     broken_launches: environments of processes
"""

from __future__ import annotations

from typing import Any

from checks.contracts import judge
from checks.framework import exercise
from checks.points import passed
from checks.single_vs_multi_node import groups, places, repairs, times, two_levels


@exercise(title="Ranks and back", difficulty=1, minutes=10, parts={"rank_of": 1, "coordinates_of": 1})
def ranks_and_back(rank_of: Any, coordinates_of: Any) -> dict[str, Any]:
    """Judge ``rank_of(node_rank, local_rank, counts)`` and ``coordinates_of(rank, counts)``."""
    judge(places.RANK_OF, rank_of)
    passed("rank_of")
    return judge(places.COORDINATES_OF, coordinates_of)


@exercise(title="Groups per node and across nodes", difficulty=2, minutes=20)
def groups_of_nodes(make_groups: Any) -> dict[str, Any]:
    """Judge ``make_groups(nodes, per_node)``, which returns this rank's two process groups."""
    return judge(groups.CONTRACT, make_groups)


@exercise(title="An all-reduce in two levels", difficulty=2, minutes=20)
def levels_with_groups(make_groups: Any, all_reduce_in_levels: Any) -> dict[str, Any]:
    """Judge ``all_reduce_in_levels(tensor, node_group, cross_group)``, in the groups of ``make_groups``."""
    return judge(two_levels.CONTRACT, make_groups, all_reduce_in_levels)


@exercise(
    title="Predict the time of an all-reduce",
    difficulty=2,
    minutes=20,
    parts={"ring_time": 1, "hierarchical_time": 1},
)
def all_reduce_times(ring_time: Any, hierarchical_time: Any) -> dict[str, Any]:
    """Judge two estimates in seconds, each called with (nbytes, nodes, per_node, inside, between)."""
    judge(times.RING_TIME, ring_time)
    passed("ring_time")
    return judge(times.HIERARCHICAL_TIME, hierarchical_time)


@exercise(title="Repair broken launches", difficulty=3, minutes=25)
def broken_launches(repair: Any) -> dict[str, Any]:
    """Judge ``repair(environments)``: a list of dicts, one for each process, comes back with the right values."""
    return judge(repairs.CONTRACT, repair)
