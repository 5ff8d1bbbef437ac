"""Exercise 1 of the lab on model parallelism: the best cut, and a stage for each GPU."""

import functools
import itertools

import numpy
import torch
from known_answers import right, wrong
from torch import nn

import simgpu

CUTS, END = "itertools.combinations(range(1, len(costs)), p - 1)", "    return best[1]"
STAGE = 'nn.Sequential(*rest[:count]).to(f"simgpu:{i}")'
REST = "    stages, rest = [], list(pieces)\n"


@right("by bisection; a module of its own")
def by_bisection():
    def fill(costs, limit):
        counts, held = [0], 0
        for cost in costs:
            if held + cost > limit:
                counts.append(0)
                held = 0
            counts[-1] += 1
            held += cost
        return counts

    def balance(costs, p):
        low, high = max(costs), sum(costs)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if len(fill(costs, middle)) <= p else (middle + 1, high)
        counts = fill(costs, low)
        while len(counts) < p:  # there is room for more stages: cut any that has two pieces
            i = next(i for i, count in enumerate(counts) if count > 1)
            counts[i : i + 1] = [1, counts[i] - 1]
        return counts

    class Stage(nn.Module):
        def __init__(self, pieces):
            super().__init__()
            self.pieces = nn.ModuleList(pieces)

        def forward(self, x):
            for piece in self.pieces:
                x = piece(x)
            return x

    def make_stages(pieces, p):
        counts = balance([sum(t.numel() * t.element_size() for t in piece.parameters()) for piece in pieces], p)
        pieces = iter(pieces)
        return [Stage([next(pieces).to(simgpu.device(i)) for _ in range(count)]) for i, count in enumerate(counts)]

    return balance, make_stages


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


@right("every cut as bits; tuples, without recording gradients")
def as_bits():
    def lengths(bits, count):
        found = [1]
        for place in range(count - 1):
            if bits >> place & 1:
                found.append(1)
            else:
                found[-1] += 1
        return found

    def balance(costs, p):
        ways = [lengths(bits, len(costs)) for bits in range(2 ** (len(costs) - 1)) if bits.bit_count() == p - 1]

        def largest(counts):
            numbers = iter(costs)
            return max(sum(next(numbers) for _ in range(count)) for count in counts)

        return tuple(min(ways, key=largest))

    @torch.no_grad()
    def make_stages(pieces, p):
        costs = [sum(t.untyped_storage().nbytes() for t in piece.parameters()) for piece in pieces]
        numbers, stages = iter(range(len(pieces))), []
        for i, count in enumerate(balance(costs, p)):
            mine = [pieces[next(numbers)] for _ in range(count)]
            stages.append(nn.Sequential(*mine).to(torch.device("simgpu", i)))
        return tuple(stages)

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

WRONG = {
    "empty stages": ("a stage has no piece", CUTS, "itertools.combinations_with_replacement(range(len(costs)), p - 1)"),
    "last piece lost": ("do not add up to all pieces", "[0, *cuts, len(costs)]", "[0, *cuts, len(costs) - 1]"),
    "floats": ("a list of whole numbers", END, "    return [count / 1 for count in best[1]]"),
    "in float32": ("the cost of the largest stage", "sum(costs[begin:end])", "numpy.float32(sum(costs[begin:end]))"),
    "sorts the costs": ("changes `costs`", "    best = []\n", "    costs.sort()\n    best = []\n"),
    "all on the first GPU": ("stage 1 is not on its GPU", "simgpu:{i}", "simgpu:0"),
    "copies of the pieces": ("itself is in no stage", "*rest[", "*copy.deepcopy(rest)["),
    "through the first GPU": ("held more than its own", REST, REST.replace("pieces)", 'nn.Sequential(*pieces).to("simgpu:0"))')),
    "largest first": ("not in their order", REST, REST + "    rest.sort(key=lambda one: -sum(q.nbytes for q in one.parameters()))\n"),
    "lists of pieces": ("a list of stages", STAGE, "[piece.to(f'simgpu:{i}') for piece in rest[:count]]"),
    "empties the list": ("changes the list", REST, "    stages, rest = [], pieces\n"),
}  # fmt: skip
for name, (says, old, new) in WRONG.items():
    more = {"        rest = rest[count:]\n": "        del rest[:count]\n"} if name == "empties the list" else {}
    wrong(name, says, {old: new, "import itertools\n": "import copy\nimport itertools\n\nimport numpy\n"} | more)
