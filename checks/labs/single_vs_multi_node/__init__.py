"""The exercises of this lab. Each check plays an answer beside the official solution (see ``checks/engine``).

places.py      ranks_and_back: from a place to a rank and back
groups.py      groups_of_nodes: process groups that all ranks make
two_levels.py  levels_with_groups: an all-reduce in these groups
times.py       all_reduce_times: what an all-reduce costs
launches.py    broken_launches: environments of processes
"""

from __future__ import annotations

from typing import Any

from checks.engine import judge
from checks.engine.exercises import exercise
from checks.labs.single_vs_multi_node import groups, launches, places, times, two_levels
from checks.points import passed

PLACES, TIMES = {"rank_of": 1, "coordinates_of": 1}, {"ring_time": 1, "hierarchical_time": 1}


@exercise(title="Ranks and back", difficulty=1, minutes=10, parts=PLACES, official=places.OFFICIAL)
def ranks_and_back(rank_of: Any, coordinates_of: Any) -> dict[str, Any]:
    """Judge ``rank_of(node_rank, local_rank, counts)`` and ``coordinates_of(rank, counts)``."""
    judge(places.RANKS, places.play_ranks, places.draw, rank_of, timeout=30)
    passed("rank_of")
    return judge(places.PLACES, places.play_places, places.draw, coordinates_of, timeout=30)


@exercise(title="Groups per node and across nodes", difficulty=2, minutes=20, official=groups.OFFICIAL)
def groups_of_nodes(make_groups: Any) -> dict[str, Any]:
    """Judge ``make_groups(nodes, per_node)``, which returns this rank's two process groups."""
    return judge(groups.OFFICIAL, groups.play, groups.CASES, make_groups, ranks=(6,))


@exercise(title="An all-reduce in two levels", difficulty=2, minutes=20, official=two_levels.OFFICIAL)
def levels_with_groups(all_reduce_in_levels: Any) -> dict[str, Any]:
    """Judge ``all_reduce_in_levels(tensor, node_group, cross_group)``."""
    return judge(two_levels.OFFICIAL, two_levels.play, two_levels.CASES, all_reduce_in_levels, ranks=(6,))


@exercise(title="Predict the time of an all-reduce", difficulty=2, minutes=20, parts=TIMES, official=times.OFFICIAL)
def all_reduce_times(ring_time: Any, hierarchical_time: Any) -> dict[str, Any]:
    """Judge two estimates in seconds, each called with (nbytes, nodes, per_node, inside, between)."""
    judge(times.RING_TIME, times.play, times.draw, ring_time, timeout=30)
    passed("ring_time")
    return judge(times.HIERARCHICAL_TIME, times.play, times.draw, hierarchical_time, timeout=30)


@exercise(title="What is wrong with this launch", difficulty=3, minutes=25, official=launches.OFFICIAL)
def broken_launches(diagnose: Any) -> dict[str, Any]:
    """Judge ``diagnose(environments)``: which variables of which processes are wrong."""
    return judge(launches.OFFICIAL, launches.play, launches.draw, diagnose, timeout=30)
