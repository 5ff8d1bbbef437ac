"""Exercise 4 of the lab on measuring: exposed communication. What is not here is in the official solution."""

import torch
from known_answers import right, wrong


@right("a tensor of milliseconds")
def milliseconds():
    def exposed(compute, communication):
        spans = [*compute, *communication]
        last = max((end for _, end in spans), default=0)
        first = min((begin for begin, _ in spans), default=0)
        busy = torch.zeros(2, last - first, dtype=torch.bool)
        for row, many in enumerate((compute, communication)):
            for begin, end in many:
                busy[row, begin - first : end - first] = True
        return (busy[1] & ~busy[0]).sum(), (~busy[0] & ~busy[1]).sum().item()

    return (exposed,)


@right("counters that go up and down")
def counters():
    def exposed(compute, communication):
        events = [(begin, 0, 1) for begin, _ in compute] + [(end, 0, -1) for _, end in compute]
        events += [(begin, 1, 1) for begin, _ in communication] + [(end, 1, -1) for _, end in communication]
        running, alone, nothing, before = [0, 0], 0, 0, None
        for time, which, step in sorted(events):
            if before is not None and not running[0]:
                if running[1]:
                    alone += time - before
                else:
                    nothing += time - before
            running[which] += step
            before = time
        return [alone, nothing]

    return (exposed,)


wrong("one number", "not two numbers", {"    return alone, neither": "    return alone"})
wrong("the other way round", "communication alone", {"    return alone, neither": "    return neither, alone"})
wrong("computing that nobody hides", "communication alone", {
    "        if not busy(compute, begin):\n            if busy(communication, begin):":
    "        if not busy(communication, begin):\n            if busy(compute, begin):",
})  # fmt: skip
