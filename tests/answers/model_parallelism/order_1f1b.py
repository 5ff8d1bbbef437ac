"""Exercise 3 of the lab on model parallelism: the order of 1F1B."""

from known_answers import right, wrong

LAST = 'return order + [f"B{k}" for k in range(m - warm_up, m)]'


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


@right("sorted by the moment")
def by_the_moment():
    def schedule_1f1b(stage, p, m):
        w = min(p - 1 - stage, m)
        moments = [(2 * max(k - w, 0) if k >= w else k - w, f"F{k}") for k in range(m)]
        moments += [(2 * k + 1, f"B{k}") for k in range(m)]
        return [item for _, item in sorted(moments, key=lambda pair: pair[0])]

    return (schedule_1f1b,)


wrong("more stages than micro-batches", "the list", {"min(p - 1 - stage, m)": "p - 1 - stage"})
wrong("no cool-down", "the list", {LAST: "return order"})
wrong("pairs", "not a list of texts", {LAST: "return [(one[0], int(one[1:])) for one in order]"})
wrong("cool-down twice", "the list", {LAST: LAST + " + order[-1:]"})
wrong("remembered, and handed out", "returns the same list", {
    "def schedule_1f1b": "known = {}\n\n\ndef schedule_1f1b",
    LAST: f"return known.setdefault((stage, p, m), {LAST[7:]})",
})  # fmt: skip
