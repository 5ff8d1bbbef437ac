"""Exercise 2 of the lab on failures and hangs: flight recorders. What is not here is in the official solution."""

from collections import defaultdict

from known_answers import right, wrong

MISSING, FIRST = 'return number, "missing", missing', "max(map(min, ranks))"
right("the numbers of groups", {'["process_group"][1] == "default_pg"': '["pg_id"] == 0', MISSING: "return [number, 'missing', missing]"})  # fmt: skip


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
            if found := _row(number, row, table.get(number + 1, {})):
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


@right("columns of the newest")
def columns():
    def first_difference(dumps):
        tails = [[e for e in dump["entries"] if e["process_group"][0] == "0"] for dump in dumps]
        begin = max(tail[0]["collective_seq_id"] for tail in tails)
        tails = [[e for e in tail if e["collective_seq_id"] >= begin] for tail in tails]
        what = [[(e["profiling_name"], e["input_sizes"], e["input_dtypes"]) for e in tail] for tail in tails]
        for place in range(max(map(len, what))):
            if short := [rank for rank, one in enumerate(what) if len(one) <= place]:
                return begin + place, "missing", short
            column = [one[place] for one in what]
            most = max(column, key=column.count)
            if odd := [rank for rank, one in enumerate(column) if one != most]:
                good, bad = what[column.index(most)], what[odd[0]]
                if bad[place : place + 2] == good[place : place + 2][::-1] and len(bad) > place + 1:
                    return begin + place, "order", odd
                which = [a == b for a, b in zip(bad[place], most, strict=True)].index(False)
                return begin + place, ("operation", "size", "type")[which], odd

    return (first_difference,)


wrong("all groups", "already lost collective", {'entry["process_group"][1] == "default_pg"': "True"})
wrong("from the oldest", "already lost collective", {FIRST: "min(map(min, ranks))"})
wrong("rank 0 is always right", "some do what most do", {
    "usual = Counter(calls[number] for calls in ranks).most_common(1)[0][0]": "usual = ranks[0][number]"
})  # fmt: skip
wrong("the ranks that are there", "are missing: some have collective", {
    MISSING: MISSING[:-7] + "[rank for rank in range(len(ranks)) if rank not in missing]"
})  # fmt: skip
wrong("never None", "all do the same", {"    return None": "    return last, 'missing', []"})
