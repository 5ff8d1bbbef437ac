import re


from collections import Counter


from pathlib import Path


from pprint import pprint


from checks.labs import failures_and_hangs as check


LOGS = Path("../scripts/failures/logs")


def judge_log(log):
    ### BEGIN SOLUTION
    ends = {int(rank): end for rank, end in re.findall(r"rank      : (\d+) .*\n  exitcode  : (.*)", log)}
    calls = {int(rank): call for rank, call in re.findall(r"\[Rank (\d+)\] Watchdog.*?(OpType.*?), NumelOut", log)}
    calls |= {int(rank): call for rank, call in re.findall(r"Rank (\d+) is running.*?(OpType.*?\])", log)}
    errors = {}
    for rank, name, words in re.findall(r"^\[rank(\d+)\]: ([\w.]+)(?:: (.*))?$", log, re.MULTILINE):
        errors.setdefault(int(rank), (name, words))

    if calls:
        if len(calls) < len(ends):
            return (set(ends) - set(calls)).pop(), "missing"
        usual = Counter(calls.values()).most_common(1)[0][0]
        return next(rank for rank in calls if calls[rank] != usual), "mismatch"
    for rank, (name, words) in errors.items():
        if not re.search("Timed out|Connection (closed|reset)", words):
            return rank, name
    for rank, end in ends.items():
        if killed := re.search(r"SIG(?!TERM)\w+", end):
            return rank, killed[0]
    return (set(ends) - set(errors)).pop(), "missing"


def first_difference(dumps):
    ### BEGIN SOLUTION
    ranks = []
    for dump in dumps:
        calls = {}
        for entry in dump["entries"]:
            if entry["process_group"][1] == "default_pg":
                call = entry["profiling_name"], str(entry["input_sizes"]), str(entry["input_dtypes"])
                calls[entry["collective_seq_id"]] = call
        ranks.append(calls)

    first, last = max(map(min, ranks)), max(map(max, ranks))
    for number in range(first, last + 1):
        missing = [rank for rank, calls in enumerate(ranks) if number not in calls]
        if missing:
            return number, "missing", missing
        usual = Counter(calls[number] for calls in ranks).most_common(1)[0][0]
        odd = [rank for rank, calls in enumerate(ranks) if calls[number] != usual]
        if odd:
            call = ranks[odd[0]][number]
            following = next(calls.get(number + 1) for calls in ranks if calls[number] == usual)
            if (call, ranks[odd[0]].get(number + 1)) == (following, usual):
                return number, "order", odd
            for what, mine, theirs in zip(("operation", "size", "type"), call, usual, strict=True):
                if mine != theirs:
                    return number, what, odd
    return None


def held_up_by(stacks):
    ### BEGIN SOLUTION
    places, waits = [], []
    for stack in stacks:
        main = stack.partition("Current thread")[2]
        places.append(int(re.search(r'train\.py", line (\d+)', main)[1]))
        waits.append(re.search("distributed_c10d|_pre_forward|_engine_run_backward", main))
    for rank, place in enumerate(places):
        if not waits[rank]:
            return rank, place
    usual = Counter(places).most_common(1)[0][0]
    for rank, place in enumerate(places):
        if place != usual:
            return rank, place
    return None
