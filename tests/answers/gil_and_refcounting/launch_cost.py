"""Exercise 7 of the lab on the GIL: what launches cost, and how many kernels a graph needs."""

# ruff: noqa: F401 (modules that changed answers use)
import bisect
import heapq
from fractions import Fraction
from itertools import accumulate, pairwise

import numpy
from known_answers import right, wrong


def step_time(kernels, launch, held, gpus):
    gil, ready, done = 0.0, [0.0] * gpus, [0.0] * gpus
    for kernel in kernels:
        for gpu in range(gpus):
            begin = max(gil, ready[gpu])
            gil = begin + held
            ready[gpu] = begin + launch
            done[gpu] = max(done[gpu], ready[gpu]) + kernel
    return max(done)


def smallest_graph(kernels, launch, held, gpus, slack):
    for size in range(1, len(kernels) + 1):
        graphs = [sum(kernels[first : first + size]) for first in range(0, len(kernels), size)]
        if step_time(graphs, launch, held, gpus) <= slack * sum(kernels):
            return size
    return None


EQUAL = {
    "17: 0.0 → -1.0": "nothing begins before 0, and no kernel before its launch is over",
    "17: 0.0 → -1.0 (2)": "nothing begins before 0, and no kernel before its launch is over",
    "17: 0.0 → -1.0 (3)": "nothing begins before 0, and no kernel before its launch is over",
    "17: 0.0 → 1.0 (3)": "no kernel begins before its launch is over, which takes more than 1",
    "20: arguments of `max(gil, ready[gpu])` swapped": "the larger of two",
    "23: arguments of `max(done[gpu], ready[gpu])` swapped": "the larger of two",
    "28: 1 → 2 (2)": "a graph of one kernel more than there are is one of all",
    "27: without `return None`": "a function that ends returns None",
}
BEGIN = "begin = max(gil, ready[gpu])"
DONE = "done[gpu] = max(done[gpu], ready[gpu]) + kernel"
GRAPHS = "graphs = [sum(kernels[first : first + size]) for first in range(0, len(kernels), size)]"
LOOPS = "    for kernel in kernels:\n        for gpu in range(gpus):\n"


# --- right, and written differently


@right("only the last thread counts")
def the_last_thread():
    def step_time(kernels, launch, held, gpus):
        # All threads do the same, each a turn after the one before: the last is the last to be done.
        period = max(launch, gpus * held)
        begin, done = (gpus - 1) * held, 0
        for number, kernel in enumerate(kernels):
            done = max(done, begin + number * period + launch) + kernel
        return done

    return (step_time,)


@right("who asks first has the next turn")
def a_queue():
    def step_time(kernels, launch, held, gpus):
        asking = [(0.0, gpu, 0) for gpu in range(gpus)]
        free, ends = 0.0, [0.0] * gpus
        while asking:
            asked, gpu, number = heapq.heappop(asking)
            if number == len(kernels):
                continue
            begin = asked if asked > free else free
            free = begin + held
            over = begin + launch
            ends[gpu] = (over if over > ends[gpu] else ends[gpu]) + kernels[number]
            heapq.heappush(asking, (over, gpu, number + 1))
        return sorted(ends)[-1]

    return (step_time,)


right(
    "numpy's numbers",
    {
        "    return max(done)": "    return numpy.max(done)",
        "            return size": "            return numpy.int64(size)",
    },
)


@right("fractions")
def with_fractions():
    def step_time(kernels, launch, held, gpus):
        kernels, launch, held = list(map(Fraction, kernels)), Fraction(launch), Fraction(held)
        turn = max(launch, gpus * held)
        begins = [held * (gpus - 1) + launch + number * turn for number in range(len(kernels))]
        return max(begin + sum(kernels[number:]) for number, begin in enumerate(begins))

    return (step_time,)


@right("sums up to each kernel")
def sums():
    def smallest_graph(kernels, launch, held, gpus, slack):
        upto = [0, *accumulate(kernels)]
        count = len(kernels)

        def seconds(size):
            cuts = [*range(0, count, size), count]
            return step_time([upto[b] - upto[a] for a, b in pairwise(cuts)], launch, held, gpus)

        return next((m for m in range(1, count + 1) if seconds(m) <= slack * upto[-1]), None)

    return (smallest_graph,)


@right("bisection: larger graphs are never slower")
def bisection():
    def smallest_graph(kernels, launch, held, gpus, slack):
        def quick(size):
            graphs = [sum(kernels[first : first + size]) for first in range(0, len(kernels), size)]
            return step_time(graphs, launch, held, gpus) <= slack * sum(kernels)

        found = bisect.bisect_left(range(1, len(kernels) + 1), True, key=quick) + 1
        return found if found <= len(kernels) else None

    return (smallest_graph,)


# --- wrong

wrong("a thread waits for its kernel", "a thread does not wait for its kernel", {
    DONE: "ready[gpu] += kernel\n            done[gpu] = ready[gpu]"
})  # fmt: skip
wrong("no GIL", "nobody waits for the GIL", {BEGIN: "begin = ready[gpu]"})
wrong(
    "the GIL for the whole launch",
    "hold the GIL for their whole launch",
    {"gil = begin + held": "gil = begin + launch"},
)
wrong("one GPU", "nobody waits for the GIL", {"range(gpus)": "range(1)"})
wrong("the first GPU", "is not when the last GPU is done", {"max(done)": "done[0]"})
wrong(
    "a kernel begins with its launch", "is not when the last GPU is done", {DONE: DONE.replace("ready[gpu]", "begin")}
)
wrong("a GPU does two at a time", "is not when the last GPU is done", {DONE: "done[gpu] = ready[gpu] + kernel"})
wrong("kernels taken from the list", "changes the list `kernels`", {
    "    for kernel in kernels:\n": "    for kernel in list(kernels):\n        kernels.pop(0)\n"
})  # fmt: skip
wrong("nothing comes back", "is a number of microseconds", {"    return max(done)": "    max(done)"})


@wrong("the law", "that is the lecture's law")
def law():
    def step_time(kernels, launch, held, gpus):
        return sum(max(kernel, launch, gpus * held) for kernel in kernels)

    return (step_time,)


@wrong("thread by thread", "one thread has all its turns")
def by_thread():
    def step_time(kernels, launch, held, gpus):
        first, done = 0.0, 0.0
        for _ in range(gpus):
            begin, done = first, 0.0
            for kernel in kernels:
                done = max(done, begin + launch) + kernel
                begin += launch
            first += held * len(kernels)
        return done

    return (step_time,)


@wrong("all in a row", "launching and computing go on at the same time")
def in_a_row():
    def step_time(kernels, launch, held, gpus):
        return sum(kernels) + len(kernels) * launch

    return (step_time,)


wrong("the number of graphs", "smallest_graph(", {"            return size": "            return len(graphs)"})
wrong("never None", "not even one graph of all", {"    return None": "    return len(kernels)"})
wrong("by the law", "smallest_graph(", {
    "        if step_time(graphs, launch, held, gpus) <= slack * sum(kernels):":
        "        if max(launch, gpus * held) <= slack * size * sum(kernels) / len(kernels):"
})  # fmt: skip
wrong("the largest", "kernels in a graph are enough", {"range(1, len(kernels) + 1)": "range(len(kernels), 0, -1)"})
wrong(
    "the rest is left out",
    "smallest_graph(",
    {"range(0, len(kernels), size)": "range(0, len(kernels) - size + 1, size)"},
)
wrong(
    "the rest in front",
    "smallest_graph(",
    {
        "range(0, len(kernels), size)": "range(-(-len(kernels) % size), len(kernels), size)",
        "kernels[first : first + size]": "kernels[max(first, 0) : first + size]",
    },
)
wrong(
    "eight GPUs at most",
    "is not when the last GPU is done",
    {"[0.0] * gpus, [0.0] * gpus": "[0.0] * (gpus := min(gpus, 8)), [0.0] * gpus"},
)
wrong(
    "somebody always holds the GIL",
    "is not when the last GPU is done",
    {"gil = begin + held": "gil = begin + (held or launch)"},
)
wrong(
    "forty kernels at most",
    "is not when the last GPU is done",
    {"for kernel in kernels:": "for kernel in kernels[:40]:"},
)
wrong("powers of two", "smallest_graph(", {"range(1, len(kernels) + 1)": "(1, 2, 4, 8, 16, 32, 64)"})
wrong("the longest of a graph", "smallest_graph(", {"[sum(kernels[first": "[max(kernels[first"})
wrong("never exactly at the limit", "kernels in a graph are enough", {"<= slack": "< slack"})
wrong(
    "an empty graph at the end", "smallest_graph(", {"range(0, len(kernels), size)": "range(0, len(kernels) + 1, size)"}
)
