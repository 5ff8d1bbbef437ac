"""Exercise 2 of the lab on failures and hangs: the ranks' flight recorders, compared."""

# ruff: noqa: F401 (modules that changed answers use)
import math
from collections import Counter, defaultdict

import numpy
from known_answers import right, wrong


def first_difference(dumps):
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


EQUAL = {
    "10: without `return None`": "a function that ends returns None",
    "25: 0 → -1 (2)": "of the one commonest, the last is the first",
    "25: 1 → 2": "of the two commonest, the first is the commonest",
    "28: 0 → -1": "all ranks that differ do so in the same way",
    "30: 0 → -1": "all ranks that differ do so in the same way",
    "32: `zip(('operation', 'size', 'type'), call, usual, strict=True)` without strict": "they have three parts each",
    "32: True → False": "they have three parts each",
}


# --- right, and written differently


@right("numbers in front of ranks")
def by_number():
    def first_difference(dumps):
        table = defaultdict(dict)
        for rank, dump in enumerate(dumps):
            for one in dump["entries"]:
                if one["pg_id"] == 0:
                    table[one["collective_seq_id"]][rank] = one
        complete = min(number for number in table if len(table[number]) == len(dumps))
        for number in sorted(number for number in table if number >= complete):
            row = table[number]
            if len(row) < len(dumps):
                return [number, "missing", [rank for rank in range(len(dumps)) if rank not in row]]
            found = _row(number, row, table.get(number + 1, {}))
            if found:
                return found

    def _sign(one):
        return one and (one["profiling_name"], one["input_sizes"], one["input_dtypes"])

    def _row(number, row, following):
        signs = [_sign(row[rank]) for rank in sorted(row)]
        normal = max(signs, key=signs.count)
        odd = {rank for rank, sign in enumerate(signs) if sign != normal}
        if not odd:
            return None
        witness = next(rank for rank in row if rank not in odd)
        swapped = all(
            _sign(row[rank]) == _sign(following.get(witness)) and _sign(following.get(rank)) == normal for rank in odd
        )
        aspect = next(i for i in range(3) if any(signs[rank][i] != normal[i] for rank in odd))
        return [number, "order" if swapped else ("operation", "size", "type")[aspect], odd]

    return (first_difference,)


right("numpy's array of ranks", {'return number, "missing", missing': 'return number, "missing", numpy.array(missing)'})
right(
    "numpy's numbers",
    {'return number, "missing", missing': 'return numpy.int64(number), "missing", list(numpy.array(missing))'},
)


@right("columns of the newest")
def columns():
    def first_difference(dumps):
        def world(dump):
            return [e for e in dump["entries"] if e["process_group"][0] == "0"]

        tails = [world(dump) for dump in dumps]
        begin = max(tail[0]["collective_seq_id"] for tail in tails)
        tails = [[e for e in tail if e["collective_seq_id"] >= begin] for tail in tails]
        what = [[(e["profiling_name"], e["input_sizes"], e["input_dtypes"]) for e in tail] for tail in tails]
        for place in range(max(map(len, what))):
            short = [rank for rank, one in enumerate(what) if len(one) <= place]
            if short:
                return begin + place, "missing", short
            column = [one[place] for one in what]
            most = max(column, key=column.count)
            odd = [rank for rank, one in enumerate(column) if one != most]
            if odd:
                good = what[column.index(most)]
                bad = what[odd[0]]
                if bad[place : place + 2] == good[place : place + 2][::-1] and len(bad) > place + 1:
                    return begin + place, "order", odd
                which = [a == b for a, b in zip(bad[place], most, strict=True)].index(False)
                return begin + place, ("operation", "size", "type")[which], odd

    return (first_difference,)


right(
    "the names of groups",
    {
        '["process_group"][1] == "default_pg"': '["pg_id"] == 0',
        "max(map(min, ranks))": "max(min(calls) for calls in ranks)",
    },
)


# --- wrong

GROUP = '            if entry["process_group"][1] == "default_pg":\n'
FIRST = "first, last = max(map(min, ranks)), max(map(max, ranks))"
ORDER = '            if (call, ranks[odd[0]].get(number + 1)) == (following, usual):\n                return number, "order", odd\n'
USUAL = "usual = Counter(calls[number] for calls in ranks).most_common(1)[0][0]"
MISSING = 'return number, "missing", missing'

wrong("all groups", "ollective ", {GROUP: "            if True:\n"})
wrong(
    "from the oldest",
    "a recorder keeps the newest",
    {FIRST: FIRST.replace("map(min", "map(min", 1).replace("max(map(min", "min(map(min")},
)
wrong("only what all have", "there is a difference", {FIRST: FIRST.replace("max(map(max", "min(map(max")})
wrong("rank 0 is always right", "these ranks do what most do", {USUAL: "usual = ranks[0][number]"})
wrong("the ranks that are there", "these ranks have that number, the others have not", {
    MISSING: 'return number, "missing", [rank for rank in range(len(ranks)) if rank not in missing]'
})  # fmt: skip
wrong("one rank alone", "the list of ranks is another one", {MISSING: 'return number, "missing", missing[:1]'})
wrong("order by what comes next", "they differ in another way", {
    "if (call, ranks[odd[0]].get(number + 1)) == (following, usual):": "if ranks[odd[0]].get(number + 1) == usual:"
})  # fmt: skip
wrong("no order", "they differ in another way", {ORDER: ""})
wrong("order by the first of the two", "they differ in another way", {
    "if (call, ranks[odd[0]].get(number + 1)) == (following, usual)": "if call == following"
})  # fmt: skip
wrong("no types", "there is a difference", {', str(entry["input_dtypes"])': ', ""'})
wrong("numbers of elements", "launch ", {
    'str(entry["input_sizes"])': 'len(entry["input_sizes"])'
})  # fmt: skip
wrong(
    "as many numbers",
    "there is a difference",
    {'str(entry["input_sizes"])': 'str([math.prod(one) for one in entry["input_sizes"]])'},
)
wrong(
    "the last dimension",
    "there is a difference",
    {'str(entry["input_sizes"])': 'str([one[-1:] for one in entry["input_sizes"]])'},
)
wrong("all that will be missing", "the list of ranks is another one", {
    MISSING: 'return number, "missing", [rank for rank, calls in enumerate(ranks) if max(calls) < last]'
})  # fmt: skip
wrong(
    "from behind the first",
    "there is a difference",
    {"max(map(min, ranks))": "max(map(min, ranks)) + 1"},
)
wrong("by place in the list", "ollective ", {'calls[entry["collective_seq_id"]]': "calls[len(calls)]"})
wrong("by record", "ollective ", {'entry["collective_seq_id"]': 'entry["record_id"]'})
wrong("the last difference", "there is an earlier one", {"range(first, last + 1)": "range(last, first - 1, -1)"})
wrong("from zero", "is not the first in which they differ", {MISSING: MISSING.replace("number,", "number - first,")})
wrong("other words", "is none of missing, order", {'"operation", "size", "type"': '"op", "shape", "dtype"'})
wrong("never None", "the ranks agree", {"    return None": "    return last, 'missing', []"})
wrong("a dict", "returns a number, a text and a list of ranks", {MISSING: 'return {"number": number}'})
wrong("one rank is no list", "returns a number, a text and a list of ranks", {
    MISSING: 'return number, "missing", missing if missing[1:] else missing[0]'
})  # fmt: skip
wrong(
    "ranks as text",
    "returns a number, a text and a list of ranks",
    {MISSING: 'return number, "missing", list(map(str, missing))'},
)
wrong(
    "sorts the dumps",
    "changes the dumps",
    {
        "    for dump in dumps:\n": '    for dump in dumps:\n        dump["entries"].sort(key=lambda one: one["process_group"])\n'
    },
)
wrong("takes the other groups out", "changes the dumps", {
    "    for dump in dumps:\n": '    for dump in dumps:\n        dump["entries"] = [one for one in dump["entries"] if one["pg_id"] == 0]\n'
})  # fmt: skip
