"""Exercise 7 of the lab on the GIL and reference counts: what launches cost. What is not here is in the official solution."""

import bisect
import heapq

from known_answers import right, wrong


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


@right("bisection: larger graphs are never slower")
def bisection():
    step_time = the_last_thread()[0]

    def smallest_graph(kernels, launch, held, gpus, slack):
        def quick(size):
            graphs = [sum(kernels[first : first + size]) for first in range(0, len(kernels), size)]
            return step_time(graphs, launch, held, gpus) <= slack * sum(kernels)

        found = bisect.bisect_left(range(1, len(kernels) + 1), True, key=quick) + 1
        return found if found <= len(kernels) else None

    return (smallest_graph,)


wrong("kernels taken from the list", "changes `kernels`", {
    "    for kernel in kernels:\n": "    for kernel in list(kernels):\n        kernels.pop(0)\n"
})  # fmt: skip
wrong("nothing comes back", "a number of microseconds", {"    return max(done)": "    max(done)"})
wrong("one GPU", "nobody waits for the GIL", {"range(gpus)": "range(1)"})
wrong("0 in place of None", "the number of kernels in a graph: not", {"return None": "return 0"})
