"""Exercise 3 of the lab on measuring: the late rank. What is not here is in the official solution."""

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
