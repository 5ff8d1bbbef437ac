"""Exercise 1 of the lab on failures and hangs: raw logs, judged."""

# ruff: noqa: F401 (modules that changed answers use)
import random
import re
from collections import Counter, defaultdict
from pathlib import Path

from known_answers import right, wrong


def judge_log(log):
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


EQUAL = {
    "24: 0 → -1 (2)": "of the one commonest, the last is the first",
    "24: 1 → 2": "of the two commonest, the first is the commonest",
}
WITNESS = '"Timed out|Connection (closed|reset)"'
FIRST = "errors.setdefault(int(rank), (name, words))"
PATTERN = r'r"^\[rank(\d+)\]: ([\w.]+)(?:: (.*))?$"'
ERRORS = "    for rank, (name, words) in errors.items():\n"
KILLED = (
    r"    for rank, end in ends.items():"
    + "\n"
    + r'        if killed := re.search(r"SIG(?!TERM)\w+", end):'
    + "\n            return rank, killed[0]\n"
)
CALLS = "    if calls:\n"
SILENT = 'return (set(ends) - set(errors)).pop(), "missing"'
USUAL = "usual = Counter(calls.values()).most_common(1)[0][0]"


# --- right, and written differently


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


right(
    "the connection, in fewer words",
    {WITNESS: '"gloo/transport"', USUAL: "usual = max(calls.values(), key=list(calls.values()).count)"},
)


# --- wrong


@wrong("what torchrun calls the root cause", "is a witness, though torchrun saw it fail first")
def root_cause():
    def judge_log(log):
        root = log[log.index("Root Cause") :]
        rank = int(re.search(r"rank      : (\d+)", root)[1])
        if killed := re.search(r"SIG\w+", root):
            return rank, killed[0]
        return rank, re.search(rf"^\[rank{rank}\]: ([\w.]+)(:|$)", log, re.MULTILINE)[1]

    return (judge_log,)


@wrong("who speaks first", "raised TypeError")
def speaks_first():
    def judge_log(log):
        found = re.search(r"^\[rank(\d+)\]: ([\w.]+)(:|$)", log, re.MULTILINE)
        return int(found[1]), found[2]

    return (judge_log,)


wrong("the last exception of a rank", "its first exception is the cause", {
    FIRST: "errors[int(rank)] = name, words", WITNESS: '"Timed out|Connection (closed|reset)|Parent directory"'
})  # fmt: skip
wrong("the last exception, whoever has it", "is a witness", {FIRST: "errors[int(rank)] = name, words"})
wrong("who was stopped is to blame", "SIGTERM is how torchrun stops", {"SIG(?!TERM)": "SIG"})
wrong("signals first", "waits in it: who has not come", {CALLS: KILLED + CALLS})
wrong("SIGTERM in front of what ranks say", "SIGTERM is how torchrun stops", {
    CALLS: KILLED.replace("(?!TERM)", "") + CALLS
})  # fmt: skip
wrong("closed connections are no sign", "is a witness", {WITNESS: '"Timed out"'})
wrong("time-outs are no sign", "is a witness", {WITNESS: '"Connection (closed|reset)"'})
wrong("reset is forgotten", "is a witness", {WITNESS: '"Timed out|Connection closed"'})
wrong("every RuntimeError is a witness", "drawn log", {
    WITNESS + ", words)": "'RuntimeError', name)",
    SILENT: 'return (set(ends) - set(errors) or set(errors)).pop(), "missing"',
})  # fmt: skip
wrong("exceptions end in Error", "the log says more of it", {
    PATTERN: r'r"^\[rank(\d+)\]: ([\w.]+Error)(?:: (.*))?$"'
})  # fmt: skip
wrong("four signals", "the log says more of it", {r'r"SIG(?!TERM)\w+"': 'r"SIG(KILL|SEGV|ABRT|BUS)"'})
wrong("a name without dots", "drawn log", {PATTERN: r'r"^\[rank(\d+)\]: (\w+)(?:: (.*))?$"'})
wrong("an exception has words", "drawn log", {PATTERN: r'r"^\[rank(\d+)\]: ([\w.]+): (.*)$"'})
wrong(
    "killed means out of memory",
    "that is not what happened to it",
    {"return rank, killed[0]": 'return rank, "SIGKILL"'},
)
wrong("who is silent was killed", "that is not what happened to it", {SILENT: SILENT.replace("missing", "SIGKILL")})
wrong("missing is the one that was stopped", "is a witness", {
    SILENT: 'return max(rank for rank, end in ends.items() if "SIGTERM" in end), "missing"'
})  # fmt: skip
wrong("rank 0 is always right", "calls what most of the others call", {
    USUAL: "usual = calls[0]" })  # fmt: skip
wrong("the operation alone", "raised", {"NumelOut": "NumelIn", r"(OpType.*?\])": r"(OpType.*?),"})
wrong("whose number is the smallest", "waits in it: who has not come", {
    'return (set(ends) - set(calls)).pop(), "missing"':
        r'return min((int(n), int(r)) for r, n in re.findall(r"Rank (\d+)\].*?last enqueued work: (\d+)", log))[1], "missing"'
})  # fmt: skip
wrong("a dict", "returns a pair of a rank", {
    "return rank, name": 'return {"rank": rank, "what": name}'
})  # fmt: skip
wrong("the rank as text", "returns a pair of a rank", {"return rank, name": "return str(rank), name"})
wrong("the whole line", "give the name alone", {"return rank, name": 'return rank, f"{name}: {words}"'})


@wrong("a guess", "log a")
def a_guess():
    def judge_log(log):
        return random.Random(log[:50]).choice([(0, "missing"), (2, "mismatch"), (1, "SIGKILL")])

    return (judge_log,)


wrong("shuffled, and the dice are left there", "random numbers", {
    "    ends = {": "    random.shuffle(lines := log.splitlines())\n    ends = {"
})  # fmt: skip
wrong("signals in small letters", "give the name alone", {"return rank, killed[0]": "return rank, killed[0].lower()"})
wrong(
    "who was killed is missing", "the log says more of it than that it has not come", {r"SIG(?!TERM)\w+": r"SIG(?!\w)"}
)


wrong(
    "any word about the time or a connection", "judge_log raised KeyError", {WITNESS: '"(?i)time|connect|closed|reset"'}
)
wrong(
    "exceptions have one of five endings",
    "its first exception is the cause",
    {PATTERN: r'r"^\[rank(\d+)\]: ([\w.]*(?:Error|Exception|Interrupt|Exit|Iteration))(?:: (.*))?$"'},
)
