"""Exercise 1 of the lab on failures and hangs: raw logs, judged. What is not here is in the official solution."""

import re
from collections import Counter, defaultdict

from known_answers import right, wrong

WITNESS = '"Timed out|Connection (closed|reset)"'
USUAL = "usual = Counter(calls.values()).most_common(1)[0][0]"
SILENT = 'return (set(ends) - set(errors)).pop(), "missing"'
right("the connection, in fewer words", {
    WITNESS: '"gloo/transport"', USUAL: "usual = max(calls.values(), key=list(calls.values()).count)"
})  # fmt: skip


@right("line by line")
def line_by_line():
    def judge_log(log):
        world, first, works, ends, rank = set(), {}, defaultdict(set), {}, None
        for line in log.splitlines():
            if line.startswith("  rank      :"):
                rank = int(line.split()[2])
                world.add(rank)
            elif line.startswith("  exitcode  :"):
                ends[rank] = line.split("(")[-1].rstrip(") ")
            elif "Watchdog caught" in line and line.startswith("[rank"):
                work = line.split("OpType=")[1].split(", NumelOut")[0]
                works[work].add(int(line[5 : line.index("]")]))
            elif line.startswith("[rank") and "Detected mismatch" in line:
                work = line.split("OpType=")[1].split(", TensorDtypes")[0]
                works[work].add(int(line[5 : line.index("]")]))
            elif line.startswith("[rank") and "]: " in line:
                head, words = line.split("]: ", 1)
                name = words.split(": ")[0]
                if name and not name.startswith(" ") and " " not in name:
                    first.setdefault(int(head[5:]), words)
        if works:
            silent = world - set.union(*works.values())
            if silent:
                return [min(silent), "missing"]
            return [min(min(works.values(), key=len)), "mismatch"]
        signs = "Timed out waiting", "Connection closed by peer", "Connection reset by peer"
        for rank, words in first.items():
            if not any(sign in words for sign in signs):
                return [rank, words.split(":")[0].split(".")[-1]]
        for rank, end in ends.items():
            if end.startswith("SIG") and end != "SIGTERM":
                return [rank, end]
        return [min(world - set(first)), "missing"]

    return (judge_log,)


@right("each rank's own part of the log")
def by_rank():
    def own(log, rank):
        return [line.split(":", 1)[1] for line in log.splitlines() if line.startswith(f"[rank{rank}]:")]

    def judge_log(log):
        # torchrun's report begins with the rank that it saw first, or ends with it: the order does not matter.
        report = log[log.index("Failures:") :]
        world = sorted(map(int, re.findall(r"rank      : (\d+)", report)))
        words = {rank: "\n".join(own(log, rank)) for rank in world}
        of_nccl = [rank for rank in world if "Watchdog caught" in words[rank]]
        if of_nccl:
            if len(of_nccl) == len(world) - 1:
                return next(rank for rank in world if rank not in of_nccl), "missing"
            sign = {rank: re.search(r"OpType=(\w+), NumelIn=(\d+)", words[rank]).groups() for rank in world}
            return next(r for r in world if list(sign.values()).count(sign[r]) == 1), "mismatch"
        named = Counter(re.findall(r"but Rank (\d+) is", log))
        if named:
            return int(named.most_common(1)[0][0]), "mismatch"
        for rank in world:
            found = re.search(r"^ ([A-Za-z_][\w.]*)(:|$)(.*)", words[rank], re.MULTILINE)
            if found and "waiting" not in found[3] and "by peer" not in found[3]:
                return rank, found[1]
        exits = re.findall(r"rank      : (\d+) .*\n.*exitcode  : (-?\d+)", report)
        names = {"-4": "SIGILL", "-6": "SIGABRT", "-7": "SIGBUS", "-8": "SIGFPE", "-9": "SIGKILL", "-11": "SIGSEGV"}
        for rank, code in exits:
            if code in names:
                return int(rank), names[code]
        return next(rank for rank in world if not words[rank]), "missing"

    return (judge_log,)


@wrong("what torchrun calls the root cause", "is a witness")
def root_cause():
    def judge_log(log):
        root = log[log.index("Root Cause") :]
        rank = int(re.search(r"rank      : (\d+)", root)[1])
        if killed := re.search(r"SIG\w+", root):
            return rank, killed[0]
        return rank, re.search(rf"^\[rank{rank}\]: ([\w.]+)(:|$)", log, re.MULTILINE)[1]

    return (judge_log,)


wrong("who was stopped is to blame", "SIGTERM is how torchrun stops", {"SIG(?!TERM)": "SIG"})
wrong("signals first", "rank 2 has come to the collective", {
    "    if calls:\n": "    for rank, end in ends.items():\n        if killed := re.search(r'SIG(?!TERM)\\w+', end):\n"
    "            return rank, killed[0]\n    if calls:\n"
})  # fmt: skip
wrong("closed connections are no sign", "is a witness", {WITNESS: '"Timed out"'})
wrong("missing is the one that was stopped", "is a witness", {
    SILENT: 'return max(rank for rank, end in ends.items() if "SIGTERM" in end), "missing"'
})  # fmt: skip
