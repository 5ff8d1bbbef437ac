"""Exercise 4 of the lab on pipeline schedules: where to cut. What is not here is in the official solution."""

from functools import cache
from itertools import accumulate

from known_answers import right, wrong


@right("by recursion that remembers")
def remembered():
    def cut(times, weights, activations, p, memory):
        time, weight, kept = ([0, *accumulate(one)] for one in (times, weights, activations))
        n = len(times)

        @cache
        def best(stage, start):
            left = p - stage
            if left == 0:
                return (0, ()) if start == n else (float("inf"), ())
            found = (float("inf"), ())
            for end in range(start + 1, n - left + 2):
                if weight[end] - weight[start] + left * (kept[end] - kept[start]) > memory:
                    break
                rest, sizes = best(stage + 1, end)
                found = min(found, (max(rest, time[end] - time[start]), (end - start, *sizes)))
            return found

        return list(best(0, 0)[1])

    return (cut,)


@right("which times are possible, by halving")
def halving():
    def cut(times, weights, activations, p, memory):
        n = len(times)

        def possible(limit):
            reached = {0: []}
            for stage in range(p):
                later = {}
                for start, sizes in reached.items():
                    time = held = 0
                    for end in range(start + 1, n - (p - stage - 1) + 1):
                        time += times[end - 1]
                        held += weights[end - 1] + (p - stage) * activations[end - 1]
                        if time > limit or held > memory:
                            break
                        later.setdefault(end, [*sizes, end - start])
                reached = later
            return reached.get(n)

        low, high = max(times), sum(times)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if possible(middle) else (middle + 1, high)
        return tuple(possible(low))

    return (cut,)


wrong("memory is forgotten", "needs more than the memory", {"if held > memory": "if False"})
wrong("every stage holds one micro-batch", "needs more than the memory", {"(p - stage) * activations": "activations"})
wrong("the first stage holds least", "needs more than the memory", {"(p - stage)": "(stage + 1)"})
wrong(
    "the head is forgotten",
    "the slowest stage's time",
    {"    n = len(times)": "    times = [*times[:-1], 0]\n    n = len(times)"},
)
wrong(
    "places, not sizes",
    "together have not all layers",
    {"return best[p, n][1]": "return [sum(best[p, n][1][:s]) for s in range(p)]"},
)
