"""Exercise 3 of the lab on model parallelism: the order of 1F1B."""

from known_answers import right, wrong


def schedule_1f1b(stage, p, m):
    warm_up = min(p - 1 - stage, m)
    order = [f"F{k}" for k in range(warm_up)]
    for k in range(m - warm_up):
        order += [f"F{warm_up + k}", f"B{k}"]
    return order + [f"B{k}" for k in range(m - warm_up, m)]


WARM = "    warm_up = min(p - 1 - stage, m)\n"
LAST = 'return order + [f"B{k}" for k in range(m - warm_up, m)]'
ALL = '    order = [f"F{k}" for k in range(warm_up)]\n'
EQUAL = {"2: arguments of `min(p - 1 - stage, m)` swapped": "the smaller one of two, in whichever order"}


# --- right, and written differently


@right("by counting what is on the way")
def counting():
    def schedule_1f1b(stage, p, m):
        order, forwards, backwards = [], 0, 0
        while backwards < m:
            if forwards < m and forwards - backwards < p - stage:
                order.append(f"F{forwards}")
                forwards += 1
            else:
                order.append(f"B{backwards}")
                backwards += 1
        return order

    return (schedule_1f1b,)


@right("a generator behind it, a tuple")
def generator():
    def steps(w, m):
        yield from ("F" + str(k) for k in range(w))
        for k in range(w, m):
            yield "F" + str(k)
            yield "B" + str(k - w)
        yield from ("B" + str(k) for k in range(m - w, m))

    def schedule_1f1b(stage, p, m):
        return tuple(steps(p - stage - 1 if p - stage - 1 < m else m, m))

    return (schedule_1f1b,)


@right("sorted by the moment")
def by_the_moment():
    def schedule_1f1b(stage, p, m):
        w = min(p - 1 - stage, m)
        moments = [(2 * max(k - w, 0) if k >= w else k - w, f"F{k}") for k in range(m)]
        moments += [(2 * k + 1, f"B{k}") for k in range(m)]
        return [item for _, item in sorted(moments, key=lambda pair: pair[0])]

    return (schedule_1f1b,)


# --- wrong

wrong("GPipe", "That is GPipe: all forwards first", {WARM: "    warm_up = m\n"})
wrong("GPipe backwards", "backwards from the last micro-batch to the first", {
    WARM: "    warm_up = m\n", LAST: "return order + [f'B{k}' for k in reversed(range(m))]"
})  # fmt: skip
wrong("no warm-up", "One micro-batch after the other", {WARM: "    warm_up = 0\n"})
wrong("counted from the first stage", "yours is as long as the way from the first", {"p - 1 - stage": "stage"})
wrong("one too many", "One forward too many in the warm-up", {"p - 1 - stage": "p - stage"})
wrong("one too few", "One forward too few in the warm-up", {"p - 1 - stage": "max(0, p - 2 - stage)"})
wrong("the same for all stages", "All stages have the warm-up of the first one", {"p - 1 - stage": "p - 1"})
wrong("more stages than micro-batches", "only", {"min(p - 1 - stage, m)": "p - 1 - stage"})
wrong("no cool-down", "leaves something out", {LAST: "return order"})
wrong("backward first", "nobody can go on", {'[f"F{warm_up + k}", f"B{k}"]': '[f"B{k}", f"F{warm_up + k}"]'})
wrong("pairs", "is a list of texts", {LAST: "return [(one[0], int(one[1:])) for one in order]"})
wrong("a generator", "is a list of texts", {LAST: "return (one for one in order)"})
wrong("cool-down twice", "does something twice", {LAST: LAST + " + order[-1:]"})
wrong("four stages", "another order", {"p - 1 - stage": "min(p, 4) - 1 - min(stage, min(p, 4) - 1)"})
wrong("eight micro-batches", "leaves something out", {WARM: WARM + "    m = min(m, 8)\n"})
wrong(
    "two digits",
    "only",
    {LAST: LAST.replace("return ", "found = ") + "\n    return [item[:2] + (item[2:] and 'x') for item in found]"},
)
wrong(
    "the last in reverse",
    "is another order",
    {LAST: LAST.replace("range(m - warm_up, m)", "reversed(range(m - warm_up, m))")},
)


wrong("remembered, and handed out", "when it is asked again", {
    "def schedule_1f1b": "known = {}\n\n\ndef schedule_1f1b",
    LAST: "return known.setdefault((stage, p, m), " + LAST.replace("return ", "") + ")",
})  # fmt: skip


wrong("known by min(m, 20)", "schedule_1f1b", {
    "def schedule_1f1b(stage, p, m):\n": "def schedule_1f1b(stage, p, m):\n    seen = schedule_1f1b.__dict__.setdefault('seen', {})\n"
    "    return list(seen.setdefault((stage, p, min(m, 20)), tuple(made(stage, p, m))))\n\n\ndef made(stage, p, m):\n"
})  # fmt: skip
wrong("counts its calls in place of the stage", "nobody can go on", {
    "def schedule_1f1b(stage, p, m):\n": "def schedule_1f1b(stage, p, m):\n    calls = schedule_1f1b.__dict__\n"
    "    calls[p, m] = calls.get((p, m), -1) + 1\n    stage = calls[p, m] // 2 % p\n"
})  # fmt: skip


@right("remembered by functools.cache, and copied")
def remembered():
    import functools

    @functools.cache
    def passes(warm_up, m):
        steady = tuple(f"{kind}{k}" for i in range(m - warm_up) for kind, k in (("F", warm_up + i), ("B", i)))
        return (*(f"F{k}" for k in range(warm_up)), *steady, *(f"B{k}" for k in range(m - warm_up, m)))

    def schedule_1f1b(stage, p, m):
        return list(passes(min(p - 1 - stage, m), m))

    return (schedule_1f1b,)


wrong("the last in the order of their texts", "is another order: from place", {
    LAST: LAST.replace("[f", "sorted([f").rstrip("]") + "])"
})  # fmt: skip
