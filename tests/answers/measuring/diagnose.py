"""Exercise 3 of the lab on measuring: the late rank. What is not here is in the official solution."""

from collections import defaultdict

import numpy
from known_answers import right, wrong


@right("arrays")
def arrays():
    def diagnose(ranks):
        kinds = ["data", "compute", "all-reduce"]
        table = numpy.array(
            [[sum(e - b for k, b, e in spans if k == kind) for kind in kinds] for spans in ranks], float
        )
        ready = numpy.array([min(b for k, b, _ in spans if k == "all-reduce") for spans in ranks], float)
        parts = numpy.column_stack([table[:, 0], table[:, 1], ready - table[:, 0] - table[:, 1]])
        last = int(ready.argmax())
        others = numpy.delete(numpy.arange(len(ranks)), last)
        more = parts[last] - numpy.median(parts[others], axis=0)
        return last, ["data", "compute", "launch"][int(more.argmax())], float(ready[last] - ready[others].max())

    return (diagnose,)


@right("gaps one by one")
def gaps():
    def middle(values):
        values, half = sorted(values), len(values) // 2
        return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2

    def diagnose(ranks):
        sums, ready = [], []
        for spans in ranks:
            own, now = defaultdict(int), 0
            for kind, begin, end in sorted(spans, key=lambda span: (span[1], span[2])):
                own["launch"] += begin - now
                if kind == "all-reduce":
                    ready.append(begin)
                    break
                own[kind] += end - begin
                now = end
            sums.append(own)
        order = sorted(range(len(ranks)), key=ready.__getitem__)
        late = order[-1]
        more = {k: sums[late][k] - middle([sums[r][k] for r in order[:-1]]) for k in ("data", "compute", "launch")}
        return [late, max(more, key=lambda k: more[k]), ready[late] - ready[order[-2]]]

    return (diagnose,)


@right("by the shortest all-reduce")
def shortest():
    import statistics

    def diagnose(ranks):
        waits = [sum(end - begin for kind, begin, end in spans if kind == "all-reduce") for spans in ranks]
        late = waits.index(min(waits))
        won = sorted(waits)[1] - min(waits)
        end = max(end for spans in ranks for _, _, end in spans)

        def part(spans, wait):
            data, compute = (sum(e - b for k, b, e in spans if k == name) for name in ("data", "compute"))
            return {"data": data, "compute": compute, "launch": end - wait - data - compute}

        parts = [part(*pair) for pair in zip(ranks, waits, strict=True)]
        names = "data", "compute", "launch"
        rest = [one for number, one in enumerate(parts) if number != late]
        more = [parts[late][name] - statistics.median([one[name] for one in rest]) for name in names]
        return late, names[more.index(max(more))], won

    return (diagnose,)


wrong(
    "only the rank",
    "not three things",
    {"    return last, max(more, key=more.get),": "    return last or max(more, key=more.get) and"},
)
wrong(
    "the spans are sorted in place",
    "changes `ranks`",
    {"    parts = []": "    for spans in ranks:\n        spans.append(spans.pop(0))\n    parts = []"},
)
