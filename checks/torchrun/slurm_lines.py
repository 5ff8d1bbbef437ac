"""Exercise 7: ``torchrun_line(slurm, program)``: what a node of a Slurm job types, read as torchrun reads it."""

from __future__ import annotations

import builtins
import contextlib
import random
from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts, Rules
from checks.torchrun.slurm_starts import WORKERS, read, started

RESTARTS, PORTS, APART = 1, range(10_000, 30_000), 1_000
_REAL = "127.0.0.[1,3]"  # a list of two nodes that are there: both are addresses of this machine


def draw(rng: random.Random) -> list[Case]:
    """Jobs with one node and with more, whose names Slurm shortens in other ways; the last one is started."""
    few, many = rng.randint(2, 3), rng.randint(4, 6)
    low, wide = rng.randint(2, 8), rng.choice((2, 3, 4))
    padded = [f"{low + n:0{wide}}" for n in range(many)]
    gpu = rng.choice(("node-a100-", "c3-n"))
    lists = [
        (f"{gpu}{padded[0]}", [f"{gpu}{padded[0]}"]),
        (f"{gpu}[{padded[0]}-{padded[-1]}]", [gpu + one for one in padded]),
        (
            f"login-{low},gpu[{padded[0]},{padded[2]}-{padded[3]}]",
            [f"login-{low}"] + ["gpu" + padded[n] for n in (0, 2, 3)],
        ),
        (",".join(f"n{n}.rack{low}" for n in range(few)), [f"n{n}.rack{low}" for n in range(few)]),
        (_REAL, ["127.0.0.1", "127.0.0.3"]),
    ]
    cases = []
    for text, names in lists:
        case = {"ranks": 1, "SLURM_JOB_NODELIST": text, "names": names, "really started": text == _REAL}
        case["GPUs of a node"] = WORKERS if text == _REAL else rng.randint(1, 8)
        case["job"] = rng.randint(1, 4_000_000) if cases else len(PORTS) - 1  # who counts ports begins anew after it
        more = [*range(case["job"], case["job"] + APART), *range(rng.randint(1, 9_999), 4_000_000, 12_347)]
        case["more jobs"] = list(dict.fromkeys(more)) if len(cases) == 1 else []
        case["program"] = ["train.py", "--folder", f"runs/{rng.randint(1, 99)} b", *rng.choice(([], ["--nnodes=9"]))]
        cases.append(case | {"seed": rng.getrandbits(30)})
    return cases


def _jobs(case: Case) -> list[tuple[int, int]]:
    """Number and restarts of jobs on these nodes: one that comes back, its neighbours; for the real start ten more."""
    first, dice = case["job"], random.Random(case["seed"])
    others = [first + 1, first + dice.randint(2, APART - 1), first + dice.choice((10, 100, 256))]
    others += [first + 11 + n for n in range(10 * case["really started"])]
    return [(first, 0), (first, 1), (first, 2), *((job, 0) for job in dict.fromkeys(others))]


def _environment(case: Case, node: int, job: int, restarts: int) -> dict[str, str]:
    nodes = len(case["names"])
    told = {
        "SLURM_JOB_ID": job,
        "SLURM_JOB_NAME": "train",
        "SLURM_JOB_NODELIST": case["SLURM_JOB_NODELIST"],
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_NTASKS": nodes,
        "SLURM_NODEID": node,
        "SLURM_PROCID": node,
        "SLURM_LOCALID": 0,
        "SLURMD_NODENAME": case["names"][node],
        "SLURM_GPUS_ON_NODE": case["GPUs of a node"],
        "SLURM_CPUS_ON_NODE": 16 * case["GPUs of a node"],
    }
    return {
        name: str(value) for name, value in (told | ({"SLURM_RESTART_COUNT": restarts} if restarts else {})).items()
    }


def scene(case: Case, watch: Any, facts: Facts) -> None:
    facts["lines"] = []
    for number, (job, restarts) in enumerate(_jobs(case)):
        nodes = range(len(case["names"])) if number < 2 or case["really started"] else (0, len(case["names"]) - 1)
        lines = []
        for node in nodes:
            slurm, program = _environment(case, node, job, restarts), list(case["program"])
            with _as_on_another_node(node):
                words = watch.call("torchrun_line", slurm=slurm, program=program)
            plain = isinstance(words, list | tuple) and all(isinstance(word, str) for word in words)
            lines.append([node, [str(word) for word in words] if plain else f"a {type(words).__name__}"])
        facts["lines"].append(lines)
    facts["of more jobs"] = []
    with watch.step("torchrun_line"):
        for job in case["more jobs"]:
            words = watch.answers["torchrun_line"](_environment(case, 0, job, 0), list(case["program"]))
            facts["of more jobs"].append(list(words))


@contextlib.contextmanager
def _as_on_another_node(node: int) -> Iterator[None]:
    """Python's ``hash`` of a text differs from process to process."""
    real = builtins.hash
    builtins.hash = lambda thing: real(thing) if isinstance(thing, int | float) else real((node, thing))
    try:
        yield
    finally:
        builtins.hash = real


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    (facts,) = world
    meetings = []
    for (job, restarts), lines in zip(_jobs(case), facts["lines"], strict=False):
        read_lines = []
        for node, words in lines:
            if isinstance(words, str) or not words:
                yield Broken("returns:words", "torchrun_line returns a list of words, each a text", words or "none")
                return
            try:
                options = read(words)
            except ValueError as error:
                yield Broken("value:0 read", f"torchrun does not take the line: {error}", " ".join(words))
                return
            broken = list(_of_one(case, node, options))
            yield from broken
            if broken:
                return
            read_lines.append(options)
        broken = list(_together(case, read_lines))
        yield from broken
        if broken:
            return
        meetings.append((job, restarts, read_lines[0]))
    broken = list(_apart(meetings)) or list(_of_more(case, facts["of more jobs"]))
    yield from broken or (started(case, facts) if case["really started"] else ())


def _of_one(case: Case, node: int, options: Namespace) -> Iterator[Broken]:
    where, nodes = f"the line of node {node}", len(case["names"])
    program = [options.training_script, *options.training_script_args]
    if program != case["program"] or options.module or options.no_python or options.run_path:
        words = f"{where} does not start the program: its words come last, as they are, and options before them"
        yield Broken("value:1 program", words, " ".join(program), " ".join(case["program"]))
    counts = "--nnodes", f"{options.least}:{options.most}", f"{nodes}:{nodes}"
    workers = "--nproc-per-node", str(options.nproc_per_node), str(case["GPUs of a node"])
    restarts = "--max-restarts", str(options.max_restarts), str(RESTARTS)
    for what, measured, expected in (counts, workers, restarts):
        if measured != expected:
            said = f"{where} has another number than the job: {what}"
            yield Broken(
                "value:2 numbers", said, measured.removesuffix(f":{nodes}"), expected.removesuffix(f":{nodes}")
            )
    if options.standalone:
        if nodes > 1:
            words = "--standalone is for one node: each would train alone, with a store of its own"
            yield Broken("value:3 standalone", words)
    elif options.rdzv_backend == "static":
        if options.node_rank != node:
            words = "without --rdzv-backend=c10d each node has to say its number, --node-rank"
            yield Broken("value:4 number", words, options.node_rank, node)
    elif options.rdzv_backend != "c10d":
        words = "this rendezvous needs a server that somebody has started: take c10d, or the static one"
        yield Broken("value:3 backend", words, options.rdzv_backend)
    else:
        yield from _guesses(case, node, options)


def _guesses(case: Case, node: int, options: Namespace) -> Iterator[Broken]:
    name = case["names"][node]
    if options.local_addr != name:
        words = f"node {node} lets torchrun guess its address, or says another one: --local-addr is for its own name"
        yield Broken("value:5 local", words, options.local_addr, name)
    hosts = str(options.conf.get("is_host", "left out")).lower()
    if hosts not in (("1", "true", "t", "yes", "y") if node == 0 else ("0", "false", "f", "no", "n")):
        words = (
            f"node {node} does not say whether the store is on it: --rdzv-conf=is_host=1 on node 0, is_host=0 elsewhere"
        )
        yield Broken("value:5 host", words, hosts, int(node == 0))


def _together(case: Case, lines: Sequence[Namespace]) -> Iterator[Broken]:
    if lines[0].standalone:
        return
    for options in lines:
        host = str(options.endpoint).partition(":")[0]
        if host != case["names"][0]:
            words = "the nodes do not meet on the first node of the list (it may stand in brackets there: gpu[07-09])"
            yield Broken("value:6 first", words, host or "no host", case["names"][0])
        else:
            yield from _of_port(options)
    for what, found in (
        ("addresses or ports", {str(options.endpoint) for options in lines}),
        ("ways to meet (--rdzv-backend)", {options.rdzv_backend for options in lines}),
        ("runs (--rdzv-id)", {str(options.rdzv_id) for options in lines}),
    ):
        if len(found) > 1:
            words = (
                f"nodes of one job have different {what}: each has to come to the same by itself, from what Slurm tells"
            )
            yield Broken("value:7 same", f"{words} all of them", " and ".join(sorted(found)))


def _of_port(options: Namespace) -> Iterator[Broken]:
    port = str(options.endpoint).partition(":")[2]
    if not port.isdigit() or int(port) not in PORTS:
        words = f"the port is a number from {PORTS[0]:,} to {PORTS[-1]:,}: who names none, or a higher one, may meet "
        words += "somebody else, for Linux gives those away"
        yield Broken("value:6 port", words, port or "none")


def _apart(meetings: Sequence[tuple[int, int, Namespace]]) -> Iterator[Broken]:
    for (first_job, before, first), (job, restarts, other) in combinations(meetings, 2):
        if first.standalone:
            continue
        two_runs = first_job == job or before == restarts
        if first.rdzv_backend == "c10d" and other.rdzv_id == first.rdzv_id and two_runs:
            ago = f"it had before it came back from the queue (SLURM_RESTART_COUNT={restarts})"
            words = f"job {job} has the --rdzv-id that {ago if restarts else f'job {first_job} has'}: agents of two "
            words += "runs would take each other for their own"
            yield Broken("value:8 id", words, other.rdzv_id, "one of its own")
        if job != first_job and other.endpoint == first.endpoint:
            yield _one_port(first_job, job, other.endpoint)


def _one_port(one: int, other: int, endpoint: str) -> Broken:
    words = f"jobs {one} and {other} have the same port: where they share a node, they meet each other"
    return Broken("value:8 port", words, endpoint)


def _of_more(case: Case, lines: Sequence[Sequence[str]]) -> Iterator[Broken]:
    """Hashes and the like give most neighbours different ports, and some the same; other sums leave the range."""
    seen: dict[str, int] = {}
    for job, words in zip(case["more jobs"], lines, strict=True):
        options = read(words)
        if options.standalone:
            continue
        if broken := next(_of_port(options), None):
            yield broken
            return
        if abs(job - seen.get(options.endpoint, -APART)) < APART:
            yield _one_port(seen[options.endpoint], job, options.endpoint)
            return
        seen[options.endpoint] = job


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    return {
        "lines": sum(len(lines) for _, (facts,) in played for lines in facts["lines"]),
        "nodes": ", ".join(str(len(case["names"])) for case, _ in played),
        "typed and started": f"2 nodes with {WORKERS} workers each",
    }


CONTRACT = Contract(
    name="torchrun.under_slurm",
    rules={"torchrun_line": Rules()},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(("returns:*", "{}"), *((f"value:{n}*", "{}") for n in range(10))),
    figures=figures,
)
