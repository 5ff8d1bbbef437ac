from itertools import pairwise


from statistics import median


from checks.labs import measuring as check


def step_time(step, wait, clock, everyone):
    ### BEGIN SOLUTION
    for _ in range(5):
        step()
    wait()
    rounds = []
    for _ in range(9):
        begin = clock()
        for _ in range(10):
            step()
        wait()
        rounds.append((clock() - begin) / 10)
    return max(everyone(median(rounds)))


def utilization(parameters, embedding, layers, width, length, tokens, gpus, peak):
    ### BEGIN SOLUTION
    dense = 6 * (parameters - embedding)
    attention = 12 * layers * width * length / 2
    whole = dense + attention
    return [work * tokens / (gpus * peak) for work in (dense, whole, whole * 4 / 3)]


def diagnose(ranks):
    ### BEGIN SOLUTION
    parts = []
    for spans in ranks:
        ready = next(begin for kind, begin, _ in spans if kind == "all-reduce")
        found = {name: sum(end - begin for kind, begin, end in spans if kind == name) for name in ("data", "compute")}
        found["launch"] = ready - sum(found.values())
        parts.append(found | {"ready": ready})
    last = max(range(len(ranks)), key=lambda rank: parts[rank]["ready"])
    others = [one for rank, one in enumerate(parts) if rank != last]
    more = {name: parts[last][name] - median(one[name] for one in others) for name in ("data", "compute", "launch")}
    return last, max(more, key=more.get), parts[last]["ready"] - max(one["ready"] for one in others)


def exposed(compute, communication):
    ### BEGIN SOLUTION
    def busy(spans, time):
        return any(begin <= time < end for begin, end in spans)

    edges = sorted({edge for span in [*compute, *communication] for edge in span})
    alone = neither = 0
    for begin, end in pairwise(edges):
        if not busy(compute, begin):
            if busy(communication, begin):
                alone += end - begin
            else:
                neither += end - begin
    return alone, neither
