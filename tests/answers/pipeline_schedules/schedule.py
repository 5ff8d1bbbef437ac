"""Exercise 1 of the lab on pipeline schedules: the order of actions. What is not here is in the official solution."""

from known_answers import right, wrong

AHEAD = "ahead = p - 1 - rank if v == 1 else 2 * (p - 1 - rank) + (v - 1) * p"


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
wrong(
    "the same number ahead on every rank",
    "too many go ahead",
    {AHEAD: "ahead = p - 1 if v == 1 else 2 * (p - 1) + (v - 1) * p"},
)
wrong("none ahead", "takes longer than the target", {AHEAD: "ahead = 0"})
wrong("interleaved as if it were 1F1B", "waits for ever", {AHEAD: "ahead = p - 1 - rank"})
wrong("stages side by side", "does not have to do", {"range(rank, v * p, p)": "range(rank * v, rank * v + v)"})
