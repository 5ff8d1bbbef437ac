"""The exercises of this lab. Each check plays an answer beside the official solution (see ``checks/engine``).

places.py      ranks_and_back: from a place to a rank and back
groups.py      groups_of_nodes: process groups that all ranks make
two_levels.py  levels_with_groups: an all-reduce in these groups
times.py       all_reduce_times: what an all-reduce costs
launches.py    broken_launches: environments of processes
"""

from checks.labs.single_vs_multi_node.groups import groups_of_nodes
from checks.labs.single_vs_multi_node.launches import broken_launches
from checks.labs.single_vs_multi_node.places import ranks_and_back
from checks.labs.single_vs_multi_node.times import all_reduce_times
from checks.labs.single_vs_multi_node.two_levels import levels_with_groups

EXERCISES = [ranks_and_back, groups_of_nodes, levels_with_groups, all_reduce_times, broken_launches]
