"""Exercise 1 of the lab on model parallelism: the best cut, and a stage for each GPU."""

import functools
import itertools

import numpy
from known_answers import right, wrong
from torch import nn

CUTS, END = "itertools.combinations(range(1, len(costs)), p - 1)", "    return best[1]"
STAGE = 'nn.Sequential(*rest[:count]).to(f"simgpu:{i}")'
REST = "    stages, rest = [], list(pieces)\n"


@right("dynamic programming, remembered; a ModuleList")
def dynamic():
    def balance(costs, p):
        @functools.cache
        def best(first, stages):
            if stages == 1:
                return sum(costs[first:]), (len(costs) - first,)
            ways = []
            for count in range(1, len(costs) - first - stages + 2):
                rest, counts = best(first + count, stages - 1)
                ways.append((max(sum(costs[first : first + count]), rest), (count, *counts)))
            return min(ways)

        return list(best(0, p)[1])

    def make_stages(pieces, p):
        counts = balance(costs=[sum(q.nbytes for q in piece.parameters()) for piece in pieces], p=p)
        ends = list(itertools.accumulate(counts, initial=0))
        stages = nn.ModuleList(nn.Sequential(*pieces[a:b]) for a, b in itertools.pairwise(ends))
        for i in range(p):
            stages[i].to(device=f"simgpu:{i}")
        return stages

    return balance, make_stages


@right("numpy's whole numbers")
def whole_numbers_of_numpy():
    def balance(costs, p):
        ends = numpy.concatenate([[0], numpy.cumsum(numpy.array(costs, dtype=numpy.int64))])
        ways = [numpy.array([0, *cuts, len(costs)]) for cuts in itertools.combinations(range(1, len(costs)), p - 1)]
        return list(numpy.diff(min(ways, key=lambda way: numpy.diff(ends[way]).max())))

    return (balance,)


right("each tensor's data is moved", {
    STAGE: "nn.Sequential(*rest[:count])",
    "    return stages": "    for i, stage in enumerate(stages):\n        for one in [*stage.parameters(), *stage.buffers()]:\n"
    '            one.data = one.data.to(f"simgpu:{i}")\n    return stages',
})  # fmt: skip

wrong("empty stages", "a whole number for each stage, at least 1", {
    CUTS: "itertools.combinations_with_replacement(range(len(costs)), p - 1)"
})  # fmt: skip
wrong("sorts the costs", "changes `costs`", {"    best = []\n": "    costs.sort()\n    best = []\n"})
wrong("all on the first GPU", "stage 1 is not on its GPU", {"simgpu:{i}": "simgpu:0"})
wrong("through the first GPU", "held more than its own", {
    REST: REST.replace("pieces)", 'nn.Sequential(*pieces).to("simgpu:0"))')
})  # fmt: skip
wrong("lists of pieces", "a list of stages", {STAGE: "[piece.to(f'simgpu:{i}') for piece in rest[:count]]"})
