"""Exercise 1 of the lab on model parallelism: the best cut, and a stage for each GPU."""

import itertools

from known_answers import right, wrong
from torch import nn


def balance(costs, p):
    best = []
    for cuts in itertools.combinations(range(1, len(costs)), p - 1):
        stages = list(itertools.pairwise([0, *cuts, len(costs)]))
        largest = max(sum(costs[begin:end]) for begin, end in stages)
        if not best or largest < best[0]:
            best = [largest, [end - begin for begin, end in stages]]
    return best[1]


def make_stages(pieces, p):
    costs = [sum(parameter.nbytes for parameter in piece.parameters()) for piece in pieces]
    stages, rest = [], list(pieces)
    for i, count in enumerate(balance(costs, p)):
        stages.append(nn.Sequential(*rest[:count]).to(f"simgpu:{i}"))
        rest = rest[count:]
    return stages


CUTS = "itertools.combinations(range(1, len(costs)), p - 1)"
STAGE = 'nn.Sequential(*rest[:count]).to(f"simgpu:{i}")'
COST = "sum(parameter.nbytes for parameter in piece.parameters())"
BEST = "if not best or largest < best[0]"
MADE = "    stages, rest = [], list(pieces)\n"
EQUAL = {
    "19: `list(pieces)` → `pieces`": "what can be sliced need not be a list",
    "12: other comparison in `largest < best[0]`": "another of several cuts that are equally good",
}


# --- right, and written differently


@right("by bisection; a module of its own")
def by_bisection():
    import simgpu

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
            if len(fill(costs, middle)) <= p:
                high = middle
            else:
                low = middle + 1
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
        pieces, stages = iter(pieces), []
        for i, count in enumerate(counts):
            stages.append(Stage([next(pieces).to(simgpu.device(i)) for _ in range(count)]))
        return stages

    return balance, make_stages


@right("dynamic programming, remembered; a ModuleList")
def dynamic():
    import functools

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


@right("every cut as bits; tuples, and each tensor moved by itself")
def as_bits():
    import torch

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

    def make_stages(pieces, p):
        costs = [sum(t.untyped_storage().nbytes() for t in piece.parameters()) for piece in pieces]
        numbers, stages = iter(range(len(pieces))), []
        for i, count in enumerate(balance(costs, p)):
            mine = [pieces[next(numbers)] for _ in range(count)]
            with torch.no_grad():
                stages.append(nn.Sequential(*mine).to(torch.device("simgpu", i)))
        return tuple(stages)

    return balance, make_stages


# --- wrong: the cut

wrong("equal numbers", "equal numbers of pieces are not equal costs", {
    "    best = []\n": "    return [len(costs) // p + (i < len(costs) % p) for i in range(p)]\n    best = []\n"
})  # fmt: skip
wrong(
    "empty stages",
    "every stage has at least one piece",
    {CUTS: "itertools.combinations_with_replacement(range(len(costs)), p - 1)"},
)
wrong("last piece lost", "loses pieces", {"[0, *cuts, len(costs)]": "[0, *cuts, len(costs) - 1]"})
wrong("places of the cuts", "the numbers add up to the number of pieces", {"end - begin for begin": "end for begin"})
wrong("smallest spread", "another cut is better", {
    "largest = max(sum(costs[begin:end]) for begin, end in stages)": "sums = [sum(costs[begin:end]) for begin, end in stages]\n"
    "        largest = max(sums) - min(sums)"
})  # fmt: skip
wrong(
    "in floats", "another cut is better", {"sum(costs[begin:end])": "int(float(sum(costs[begin:end])) / 2**20) * 2**20"}
)
wrong("the smallest stage is largest", "another cut is better", {
    "largest = max(": "largest = -min("
})  # fmt: skip
wrong("at most four stages", "has one number for each stage", {"    best = []\n": "    p = min(p, 4)\n    best = []\n"})
wrong(
    "floats",
    "is a list with the number of pieces of each stage",
    {"return best[1]": "return [count / 1 for count in best[1]]"},
)
wrong("sorts the costs", "changes the list of costs", {"    best = []\n": "    costs.sort()\n    best = []\n"})
wrong("clears the costs", "changes the list of costs", {"return best[1]": "costs.clear()\n    return best[1]"})


@wrong("cut where the mean is passed", "another cut is better")
def where_the_mean_is_passed():
    def balance(costs, p):
        counts, held = [0], 0
        for i, cost in enumerate(costs):
            full = held + cost > sum(costs) / p and counts[-1] > 0
            if (full and len(counts) < p) or len(costs) - i <= p - len(counts):
                counts.append(0)
                held = 0
            counts[-1] += 1
            held += cost
        return counts

    return (balance,)


wrong("known by the sorted costs", "has one number for each stage", {
    "def balance(costs, p):\n": "known = {}\n\n\ndef balance(costs, p):\n    key = tuple(sorted(costs)), p\n"
    "    return known.setdefault(key, cut(costs, p))\n\n\ndef cut(costs, p):\n"
})  # fmt: skip


# --- wrong: the stages

wrong("numbers, not bytes", "numbers in place of bytes", {COST: COST.replace("nbytes", "numel()")})
wrong("buffers count too", "the largest stage can be smaller", {
    COST: "sum(tensor.nbytes for tensor in (*piece.parameters(), *piece.buffers()))"
})  # fmt: skip
wrong(
    "only what is trained counts",
    "the largest stage can be smaller",
    {COST: COST.replace("parameters())", "parameters() if parameter.requires_grad)")},
)
wrong(
    "only float32 is known",
    "the largest stage can be smaller",
    {COST: COST.replace("parameters())", "parameters() if parameter.element_size() == 4)")},
)
wrong("all on the first GPU", "is not on its GPU", {"simgpu:{i}": "simgpu:0"})
wrong("still on the CPU", "is not on its GPU", {STAGE: "nn.Sequential(*rest[:count])"})
wrong(
    "copies of the pieces",
    "itself is in no stage",
    {STAGE: "__import__('copy').deepcopy(" + "nn.Sequential(*rest[:count])" + ').to(f"simgpu:{i}")'},
)
wrong("everything through the first GPU", "more than its own stage was on GPU 0", {
    MADE: '    stages, rest = [], list(nn.Sequential(*pieces).to("simgpu:0"))\n'
})  # fmt: skip
wrong(
    "largest first",
    "the pieces stay in their order",
    {MADE: MADE + "    rest.sort(key=lambda piece: -sum(q.nbytes for q in piece.parameters()))\n"},
)
wrong("one list", "returns a list of stages", {"    return stages": "    return stages[0]"})
wrong("lists of pieces", "returns a list of stages", {STAGE: "[piece.to(f'simgpu:{i}') for piece in rest[:count]]"})
wrong("one stage too few", "one stage for each GPU", {"    return stages": "    return stages[: max(1, p - 1)]"})
wrong("back and forth", "was replaced by a new object", {STAGE: STAGE + '.to("cpu").to(f"simgpu:{i}")'})


# --- wrong: what else is changed

wrong(
    "empties the list of pieces",
    "as before",
    {MADE: "    stages, rest = [], pieces\n", "        rest = rest[count:]\n": "        del rest[:count]\n"},
)
wrong("eval", "is in another mode", {STAGE: STAGE + ".eval()"})
wrong("train", "is in another mode", {STAGE: STAGE + ".train()"})
wrong("thaws", "it was frozen, or thawed", {STAGE: STAGE + ".requires_grad_(True)"})
wrong("in float32", "has another type than before", {STAGE: STAGE + ".float()"})
wrong("new parameters", "itself is in no stage", {
    STAGE: "nn.Sequential(*(type(piece).__new__(type(piece)) if piece is None else __import__('copy').copy(piece) for piece in rest[:count]))" + '.to(f"simgpu:{i}")'
})  # fmt: skip
wrong(
    "hooks are removed",
    "has lost hooks",
    {STAGE: "[piece._forward_hooks.clear() for piece in rest[:count]] and " + STAGE},
)
wrong(
    "the pieces are named anew",
    "attributes that were added",
    {STAGE: "[setattr(piece, 'stage', i) for piece in rest[:count]] and " + STAGE},
)


CLASS = "class Stage(nn.Sequential):\n    def forward(self, x):\n        "
wrong("stages that do not learn", "in backward the stages do not give", {
    "def make_stages": CLASS + "with __import__('torch').no_grad():\n            return super().forward(x)\n\n\ndef make_stages",
    "nn.Sequential(*rest": "Stage(*rest",
})  # fmt: skip
wrong("the input is cut off", "in backward the stages do not give", {
    "def make_stages": CLASS + "return super().forward(x.detach())\n\n\ndef make_stages",
    "nn.Sequential(*rest": "Stage(*rest",
})  # fmt: skip


wrong("a stage keeps its input", "does a stage keep input or output", {
    "def make_stages": CLASS + "self.x = x\n        return super().forward(x)\n\n\ndef make_stages",
    "nn.Sequential(*rest": "Stage(*rest",
})  # fmt: skip
wrong("a stage leaves out the pieces' hooks", "another result than the model", {
    "def make_stages": CLASS + "for piece in self:\n            x = piece.forward(x)\n        return x\n\n\ndef make_stages",
    "nn.Sequential(*rest": "Stage(*rest",
})  # fmt: skip
wrong("a stage seeds the random numbers", "random numbers other than before", {
    "def make_stages": CLASS + "__import__('torch').manual_seed(0)\n        return super().forward(x)\n\n\ndef make_stages",
    "nn.Sequential(*rest": "Stage(*rest",
})  # fmt: skip
wrong("known by the list, which changes", "balance", {
    "def balance(costs, p):\n": "def balance(costs, p):\n    known = balance.__dict__.setdefault('known', {})\n"
    "    return known.setdefault((id(costs), p), cut(costs, p))\n\n\ndef cut(costs, p):\n"
})  # fmt: skip


right("each tensor's data is moved", {
    '        stages.append(nn.Sequential(*rest[:count]).to(f"simgpu:{i}"))\n': "        stages.append(nn.Sequential(*rest[:count]))\n"
    "        for one in [*stages[-1].parameters(), *stages[-1].buffers()]:\n"
    '            one.data = one.data.to(f"simgpu:{i}")\n'
})  # fmt: skip


@right("numpy's whole numbers")
def whole_numbers_of_numpy():
    import numpy as np

    def balance(costs, p):
        ends = np.concatenate([[0], np.cumsum(np.array(costs, dtype=np.int64))])
        ways = [np.array([0, *cuts, len(costs)]) for cuts in itertools.combinations(range(1, len(costs)), p - 1)]
        return list(np.diff(min(ways, key=lambda way: np.diff(ends[way]).max())))

    return (balance,)


wrong("what is saved counts", "all that state_dict() has", {
    COST: "sum(tensor.nbytes for tensor in piece.state_dict().values())"
})  # fmt: skip
wrong("pieces in a plain list", "into which nn.Module does not look", {
    "def make_stages": "class Stage(nn.Module):\n    def __init__(self, pieces):\n        super().__init__()\n        self.pieces = pieces\n\n"
    "    def forward(self, x):\n        for piece in self.pieces:\n            x = piece(x)\n        return x\n\n\ndef make_stages",
    STAGE: "Stage([piece.to(f'simgpu:{i}') for piece in rest[:count]])",
})  # fmt: skip
wrong("the last GPU stays the default device", "leaves torch's defaults other", {
    "        stages.append(": '        __import__("torch").set_default_device(f"simgpu:{i}")\n        stages.append('
})  # fmt: skip
