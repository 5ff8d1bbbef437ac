"""Exercise 3 of the lab on failures and hangs: stacks of all ranks. What is not here is in the official solution."""

import re
from collections import defaultdict

from known_answers import right, wrong

SIGNS = ("distributed_c10d.py", "_pre_forward", "_engine_run_backward")
FOUND, USUAL = "return rank, place", "usual = Counter(places).most_common(1)[0][0]"
PLACE = "int(re.search(r'train\\.py\", line (\\d+)', main)[1])"
WAITS = 're.search("distributed_c10d|_pre_forward|_engine_run_backward", main)'
NO_LATE = "    for rank, place in enumerate(places):\n        if not waits[rank]:\n            return rank, place\n"


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
            ranks[line, any(file in SIGNS or name in SIGNS for file, _, name in frames)].append(rank)
        if len(ranks) == 1:
            return None
        (line, _), (rank,) = min(ranks.items(), key=lambda item: (item[0][1], len(item[1])))
        return [rank, line]

    return (held_up_by,)


@right("by the name of the innermost function")
def by_name():
    names = ("all_reduce", "barrier", "broadcast", "all_gather", "_engine_run_backward", "_broadcast_coalesced")

    def held_up_by(stacks):
        parts = [stack[stack.index("Current thread") :] for stack in stacks]
        lines = [int(part.split('/train.py", line ')[1].split()[0]) for part in parts]
        idle = [part.splitlines()[1].endswith(names) for part in parts]
        if not all(idle):
            return idle.index(False), lines[idle.index(False)]
        for rank, line in enumerate(lines):
            if lines.count(line) == 1:
                return rank, line

    return (held_up_by,)


@right("who waits is set aside first")
def set_aside():
    def where(stack):
        current = stack.split("Current thread")[-1]
        return current.split('train.py", line ', 1)[1].split()[0], any(sign in current for sign in SIGNS)

    def held_up_by(stacks):
        seen = list(map(where, stacks))
        lines = [line for line, _ in seen]
        free = [rank for rank, (_, waits) in enumerate(seen) if not waits]
        odd = free or [rank for rank in range(len(seen)) if lines.count(lines[rank]) < len(seen) / 2]
        return (odd[0], int(lines[odd[0]])) if odd else None

    return (held_up_by,)


wrong(
    "its line in any thread",
    "in none of its main thread's calls",
    {FOUND: FOUND[:-5] + PLACE.replace("main", "stacks[rank]")},
)
wrong("the line that began it all", "has called what is going on", {
    FOUND: FOUND[:-5] + "int(re.findall(r'train\\.py\", line (\\d+)', stacks[rank])[-1])"
})  # fmt: skip
wrong("looks for the odd line only", "another one is in no collective", {NO_LATE: ""})
wrong("signs in any thread", "another one is in no collective", {WAITS: WAITS.replace("main)", "stack)")})
wrong("rank 0 is where all are", "it is held up itself", {USUAL: "usual = places[0]"})
