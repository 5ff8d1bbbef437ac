"""Exercise 1 of the lab on pipeline schedules: the order of actions. What is not here is in the official solution."""

from known_answers import right, wrong

AHEAD = "ahead = p - 1 - rank if v == 1 else 2 * (p - 1 - rank) + (v - 1) * p"


@wrong("by a clock: backward if one is there, forward if there is room", "takes longer than the target")
def greedy():
    def schedule(p, m, v):
        last = p * v - 1
        padded = -(-m // p) * p
        room = [p - r if v == 1 else 2 * (p - 1 - r) + (v - 1) * p + 1 for r in range(p)]
        forward, backward = [], []
        for r in range(p):
            keys = [(i // p, c, i % p) for i in range(padded) for c in range(v)]
            forward.append([(c * p + r, g * p + i) for g, c, i in sorted(keys)])
            backward.append([((v - 1 - c) * p + r, g * p + i) for g, c, i in sorted(keys)])
        ends, free, waiting, rows = {}, [0] * p, [0] * p, [[] for _ in range(p)]
        now = 0
        while any(backward):
            for r in range(p):
                if free[r] > now:
                    continue
                if backward[r]:
                    s, i = backward[r][0]
                    need = ("F", s, i) if s == last else ("B", s + 1, i)
                    if ends.get(need, now + 1) <= now:
                        backward[r].pop(0)
                        free[r] = ends["B", s, i] = now + 2
                        rows[r].append((s, "B", i))
                        waiting[r] -= 1
                        continue
                if forward[r] and waiting[r] < room[r]:
                    s, i = forward[r][0]
                    if s == 0 or ends.get(("F", s - 1, i), now + 1) <= now:
                        forward[r].pop(0)
                        free[r] = ends["F", s, i] = now + 1
                        rows[r].append((s, "F", i))
                        waiting[r] += 1
            now += 1
        return [[f"{s}{kind}{i}" for s, kind, i in row if i < m] for row in rows]

    return (schedule,)


@right("tuples of text, one place after the other")
def by_place():
    def schedule(p, m, v):
        rounds = (m + p - 1) // p
        total = rounds * p * v

        def place(k, backwards):
            group, rest = divmod(k, p * v)
            chunk, i = divmod(rest, p)
            return (v - 1 - chunk if backwards else chunk), group * p + i

        table = []
        for r in range(p):
            first = min(total, (p - r - 1) * (2 if v > 1 else 1) + (v - 1) * p)
            row = []
            for k in range(total + first):
                if k < total:
                    chunk, i = place(k, False)
                    row.append(("F", chunk * p + r, i))
                if k >= first:
                    chunk, i = place(k - first, True)
                    row.append(("B", chunk * p + r, i))
            table.append(tuple(f"{s}{kind}{i}" for kind, s, i in row if i < m))
        return tuple(table)

    return (schedule,)


@right("by recursion over the groups, generators")
def generators():
    def passes(kind, stages, p, groups):
        for group in range(groups):
            for stage in stages:
                yield from (f"{stage}{kind}{i}" for i in range(group * p, group * p + p))

    def row(rank, p, m, v):
        groups = (m - 1) // p + 1
        mine = [rank + p * chunk for chunk in range(v)]
        ahead, back = passes("F", mine, p, groups), passes("B", mine[::-1], p, groups)
        for _ in range({True: 1, False: 2}[v == 1] * (p - rank - 1) + p * (v - 1)):
            yield next(ahead, None)
        for action in ahead:
            yield action
            yield next(back)
        yield from back

    def schedule(p, m, v):
        return [
            [one for one in row(rank, p, m, v) if one and int(one[one.find("F") + one.find("B") + 2 :]) < m]
            for rank in range(p)
        ]

    return (schedule,)


@right("lists made one from the other")
def popped():
    def schedule(p, m, v):
        padded = m + (-m) % p
        rows = []
        for r in range(p):
            order = [(g, c, i) for g in range(0, padded, p) for c in range(v) for i in range(g, g + p)]
            todo = [f"{c * p + r}F{i}" for _, c, i in order if True]
            back = [f"{(v - 1 - c) * p + r}B{i}" for _, c, i in order]
            ahead = p - 1 - r + (v > 1) * (p - 1 - r + (v - 1) * p)
            row = [todo.pop(0) for _ in range(min(ahead, len(todo)))]
            while todo:
                row += [todo.pop(0), back.pop(0)]
            rows.append([a for a in row + back if int(a.replace("B", "F").split("F")[1]) < m])
        return rows

    return (schedule,)


wrong("GPipe", "too many go ahead", {"        ahead = min(ahead, len(forward))": "        ahead = len(forward)"})
wrong("one micro-batch after the other", "takes longer than the target", {AHEAD: "ahead = 0"} | {
    'f"{stage}F{p * group + i}" for group in groups for stage in stages for i in range(p)':
        'f"{stage}F{p * group + i}" for group in groups for i in range(p) for stage in stages',
    "        row = forward[:ahead]\n        for pair in zip(forward[ahead:], backward, strict=False):  # those that are left come after\n            row += pair\n        row += backward[len(forward) - ahead :]":
        "        row = []\n        for i in range(m):\n            row += [f'{s}F{i}' for s in stages] + [f'{s}B{i}' for s in reversed(stages)]",
})  # fmt: skip
wrong(
    "the same number ahead on every rank",
    "too many go ahead",
    {AHEAD: "ahead = p - 1 if v == 1 else 2 * (p - 1) + (v - 1) * p"},
)
wrong("none ahead", "takes longer than the target", {AHEAD: "ahead = 0"})
wrong("interleaved as if it were 1F1B", "waits for ever", {AHEAD: "ahead = p - 1 - rank"})
wrong(
    "backward begins with the first stage", "waits for ever", {"for stage in reversed(stages)": "for stage in stages"}
)
wrong("micro-batches that do not exist", "does not have to do", {'if int(re.split("[FB]", action)[1]) < m': ""})
wrong("the last micro-batches are missing", "lacks", {"-(-m // p)": "m // p"})
wrong("stages side by side", "does not have to do", {"range(rank, v * p, p)": "range(rank * v, rank * v + v)"})
wrong("the first micro-batch through all stages first", "waits for ever", {
    "for group in groups for stage in stages for i in range(p)": "for group in groups for i in range(p) for stage in stages"
})  # fmt: skip
wrong("the cool-down is missing", "lacks", {"        row += backward[len(forward) - ahead :]\n": ""})
wrong("nothing comes back", "not a list with a row for each rank", {"    return rows": "    rows"})
