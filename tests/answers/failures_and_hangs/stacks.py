"""Exercise 3 of the lab on failures and hangs: stacks of all ranks, read."""

import re
from collections import Counter, defaultdict

import numpy  # noqa: F401 (a changed answer uses it)
from known_answers import right, wrong


def held_up_by(stacks):
    places, waits = [], []
    for stack in stacks:
        main = stack.partition("Current thread")[2]
        places.append(int(re.search(r'train\.py", line (\d+)', main)[1]))
        waits.append("distributed_c10d.py" in main)
    for rank, place in enumerate(places):
        if not waits[rank]:
            return rank, place
    usual = Counter(places).most_common(1)[0][0]
    for rank, place in enumerate(places):
        if place != usual:
            return rank, place
    return None


EQUAL = {
    "19: 0 → -1 (2)": "of the one commonest, the last is the first",
    "19: 1 → 2": "of the two commonest, the first is the commonest",
    "10: without `return None`": "a function that ends returns None",
}
MAIN = 'main = stack.partition("Current thread")[2]'
PLACE = "int(re.search(r'train\\.py\", line (\\d+)', main)[1])"
BUSY = """    for rank, place in enumerate(places):
        if not waits[rank]:
            return rank, place
"""
ELSEWHERE = """    for rank, place in enumerate(places):
        if place != usual:
            return rank, place
"""
WAITS = '"distributed_c10d.py" in main'


# --- right, and written differently


@right("frame by frame")
def by_frames():
    def main_thread(stack):
        frames, inside = [], False
        for line in stack.splitlines():
            if "thread 0x" in line.lower():
                inside = line.startswith("Current")
            elif inside and line.strip():
                file, number, name = re.fullmatch(r' +File "(.+)", line (\d+) in (.+)', line).groups()
                frames.append((file.rsplit("/", 1)[-1], int(number), name))
        return frames

    def held_up_by(stacks):
        ranks = defaultdict(list)
        for rank, stack in enumerate(stacks):
            frames = main_thread(stack)
            line = next(number for file, number, _ in frames if file == "train.py")
            waiting = any(file == "distributed_c10d.py" for file, _, _ in frames)
            ranks[line, waiting].append(rank)
        if len(ranks) == 1:
            return None
        (line, _), (rank,) = min(ranks.items(), key=lambda item: (item[0][1], len(item[1])))
        return [rank, line]

    return (held_up_by,)


@right("by the name of the innermost function")
def by_name():
    names = ("all_reduce", "barrier", "broadcast", "all_gather")

    def held_up_by(stacks):
        parts = [stack[stack.index("Current thread") :] for stack in stacks]
        lines = [int(part.split('/train.py", line ')[1].split()[0]) for part in parts]
        idle = [part.splitlines()[1].endswith(tuple(f" in {name}" for name in names)) for part in parts]
        if not all(idle):
            rank = idle.index(False)
            return rank, lines[rank]
        for rank, line in enumerate(lines):
            if lines.count(line) == 1:
                return rank, line

    return (held_up_by,)


@right("who waits is set aside first")
def set_aside():
    def where(stack):
        current = stack.split("Current thread")[-1]
        return current.split('train.py", line ', 1)[1].split()[0], "c10d.py" in current

    def held_up_by(stacks):
        seen = list(map(where, stacks))
        free = [rank for rank, (_, waits) in enumerate(seen) if not waits]
        lines = [line for line, _ in seen]
        odd = free or [rank for rank in range(len(seen)) if lines.count(lines[rank]) < len(seen) / 2]
        return (odd[0], int(lines[odd[0]])) if odd else None

    return (held_up_by,)


# --- wrong, each refused with the sentence that is meant for it

IN_MAIN = "has called what is going on, in another line of train.py"
A_THREAD = "is where another thread of rank"
WAITING = "waits where all ranks but one wait"
FOUND = "return rank, place"

wrong(
    "its line in any thread",
    A_THREAD,
    {FOUND: "return rank, int(re.search(r'train\\.py\", line (\\d+)', stacks[rank])[1])"},
)
wrong(
    "the line that began it all",
    IN_MAIN,
    {FOUND: "return rank, int(re.findall(r'train\\.py\", line (\\d+)', stacks[rank])[-1])"},
)
wrong(
    "the innermost line of any file",
    "is in its stack",
    {FOUND: "return rank, int(re.search(r'line (\\d+)', stacks[rank].partition('Current thread')[2])[1])"},
)
wrong("looks for a busy rank only", "one rank is not where the others are", {ELSEWHERE: ""})
wrong("looks for the odd line only", WAITING, {BUSY: ""})
wrong("there is always one", "all ranks wait in the same line", {"    return None": "    return 0, places[0]"})
wrong("the least usual line is the usual one", WAITING, {"most_common(1)[0][0]": "most_common()[-1][0]"})
wrong("ranks of another world", "there is no rank", {FOUND: "return rank + len(stacks), place"})
wrong("text instead of a number", "two whole numbers", {PLACE: "re.search(r'train\\.py\", line (\\d+)', main)[1]"})
wrong("only the rank", "two whole numbers", {FOUND: "return rank"})
wrong(
    "changes the list",
    "changes the list of stacks",
    {"waits.append(": "stacks[len(waits)] = main\n        waits.append("},
)
wrong("a collective in any thread", WAITING, {WAITS: '"distributed_c10d.py" in stack'})
wrong(
    "knows two collectives only",
    WAITING,
    {WAITS: '"in all_reduce" in main or "in barrier" in main'},
)
wrong("of two ranks one is always busy", "all ranks wait in the same line", {
    "    for rank, place in enumerate(places):\n        if not waits[rank]:\n":
        "    for rank, place in enumerate(places):\n        if not waits[rank] or len(stacks) == 2 == rank + 1:\n"
})  # fmt: skip
wrong(
    "the smallest line is the usual one",
    WAITING,
    {"usual = Counter(places).most_common(1)[0][0]": "usual = min(places)"},
)
wrong("rank 0 is where all are", WAITING, {"usual = Counter(places).most_common(1)[0][0]": "usual = places[0]"})
wrong("the last rank is where all are", WAITING, {"usual = Counter(places).most_common(1)[0][0]": "usual = places[-1]"})
wrong("another collective, not another line", "one rank is not where the others are", {
    "    usual = Counter": "    places = [stack.rpartition('c10d_logger')[0].split()[-2] for stack in stacks]\n    usual = Counter"
})  # fmt: skip
wrong("an empty pair for none", "two whole numbers", {"    return None": "    return ()"})
right("numpy's numbers", {PLACE: f"numpy.int64({PLACE})"})
right(
    "numpy's array",
    {
        "        if place != usual:\n            return rank, place\n": "        if place != usual:\n            return numpy.array([rank, place])\n"
    },
)


wrong("any file of torch.distributed", "waits where all ranks but one wait", {WAITS: '"torch/distributed" in main'})
wrong("lines have two digits", "is in its stack", {PLACE: PLACE.replace("\\d+", "\\d\\d")})
