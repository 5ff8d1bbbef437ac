"""The exercises of this lab: all-reduces out of send and recv, and a parameter server with bounded staleness."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

from utils.checks import Wrong, exercise, expect, passed, run
from utils.checks.parameter_server_and_all_reduce import judges, probes, servers
from utils.checks.parameter_server_and_all_reduce.probes import Case, Facts, Plan
from utils.hardware import links

SECONDS = 40  # for each launch; a dead-lock ends sooner


def _launched(probe: Callable[..., Any], answer: Any, plan: Plan) -> list[list[Facts]]:
    """Run a probe, judge what it found, and say of a crash or a hang in which case it was."""
    try:
        found = run(probe, answer, plan, ranks=plan.ranks, nodes=plan.shape[0], timeout=SECONDS)[0]
    except Wrong as wrong:
        raise _with_the_notes(wrong, plan) from None
    for case, facts in zip(plan.cases, found, strict=False):
        plan.judge(plan, case, facts)
    return found


def _with_the_notes(wrong: Wrong, plan: Plan) -> Wrong:
    """The same verdict, with what the ranks had noted before they ended."""
    cases, raised = probes.noted(plan, "case"), probes.noted(plan, "raised")
    calls = {rank: probes.messages_in(text) for rank, text in probes.noted(plan, "calls").items()}
    sentence = wrong.sentence.rstrip(".")
    broken = "ended its process" in sentence or "gloo" in sentence  # what follows a message of the wrong size
    if alone := [rank for rank, messages in calls.items() if any(peer == rank for _, peer, _ in messages)]:
        sentence = (
            f"rank {alone[0]} sends to itself, or receives from itself: with world size 1 there is nothing to send"
        )
    elif broken and (misfit := probes.misfit(calls)):
        sentence = f"a message is larger than the place for it: {misfit}. Both must mean the same chunk"
    elif "not finished" in sentence and raised:
        first = min(raised)
        sentence = (
            f"rank {first} raises {raised[first]} while other ranks still wait for its messages, and they wait for "
            "ever: first all ranks learn all lengths, then they raise"
        )
    if cases:
        sentence += f"{'' if sentence.endswith('?') else '.'} This was with {cases[max(cases)]}, on {plan!r}."
    return wrong.saying(sentence)


# --- 1: lengths ------------------------------------------------------------------------------------------------

LENGTHS = (
    ((5, 5, 5, 5), (5, 5, 7, 5), (4, 6, 5, 5), (6, 5, 5, 5), (3, 3, 3, 2), (0, 4, 4, 4), (2, 3, 4, 5), (9, 9, 9, 9)),
    ((8, 8, 8), (8, 8, 9), (2, 1, 2)),
    ((4, 4), (3, 4)),
    ((6,),),
)


@exercise(title="Agree on the length", difficulty=1, minutes=15, timeout=180)
def lengths(check_length: Any) -> dict[str, Any]:
    """Judge ``check_length(tensor)``, which raises ValueError on all ranks if their lengths differ."""
    with tempfile.TemporaryDirectory(prefix="check-") as notes:
        for cases in LENGTHS:
            plan = Plan((1, len(cases[0])), cases, notes, judges.judge_lengths)
            _launched(probes.lengths, check_length, plan)
    refused = sum(len(set(case)) > 1 for cases in LENGTHS for case in cases)
    return {"world sizes": "4, 3, 2, 1", "unequal lengths refused on every rank": refused}


# --- 2: the ring -----------------------------------------------------------------------------------------------

WORLDS = (4, 3, 2, 1)
MEASURED = Case(1001, "float32")  # what the figures are about


def _cases(ranks: int) -> tuple[Case, ...]:
    traces = dict.fromkeys((3 * ranks, 4 * ranks + 1, 5 * ranks - 1, ranks, ranks - 1, 1))
    others = (MEASURED, Case(997, "float64"), Case(1001, "int32"), Case(1003, "int64"), Case(2, "float32"))
    return (*(Case(length, "trace") for length in traces if length), *others)


@exercise(title="Ring all-reduce", difficulty=2, minutes=30, timeout=180)
def ring(ring_all_reduce: Any) -> dict[str, Any]:
    """Judge ``ring_all_reduce(tensor)``, which works in place and by send and recv only."""
    sent = {}
    with tempfile.TemporaryDirectory(prefix="check-") as notes:
        for ranks in WORLDS:
            plan = Plan((1, ranks), _cases(ranks), notes, judges.judge_ring)
            found = _launched(probes.all_reduces, ring_all_reduce, plan)
            sent[ranks] = max(map(judges.sent_bytes, found[plan.cases.index(MEASURED)]))
    return {
        "world sizes": ", ".join(map(str, WORLDS)),
        "all-reduces": sum(len(_cases(ranks)) for ranks in WORLDS),
        "a rank of 4 sends, for 4,004 bytes": f"{sent[4]:,} bytes",
        "memory": "the tensor and one chunk",
    }


# --- 3: two levels ---------------------------------------------------------------------------------------------

SHAPES = ((2, 2), (3, 2), (1, 3), (3, 1), (1, 1))  # nodes, ranks per node


@exercise(title="Hierarchical all-reduce", difficulty=3, minutes=30, timeout=180)
def levels(hierarchical_all_reduce: Any) -> dict[str, Any]:
    """Judge ``hierarchical_all_reduce(tensor, nodes, per_node)``: a ring inside the nodes, and rings between them."""
    sent = {}
    with tempfile.TemporaryDirectory(prefix="check-") as notes:
        for nodes, per_node in SHAPES:
            shape = nodes, per_node
            plan = Plan(shape, _cases(nodes * per_node), notes, judges.judge_levels, arguments=shape)
            found = _launched(probes.all_reduces, hierarchical_all_reduce, plan)
            at = plan.cases.index(MEASURED)
            sent[shape] = max(judges.sent_between(plan, found[at]))
    return {
        "shapes": ", ".join(f"{nodes} × {per_node}" for nodes, per_node in SHAPES),
        "a node of 2 × 2 sends to the other, for 4,004 bytes": f"{sent[2, 2]:,} bytes",
        "with a flat ring": f"{links.ring_all_reduce_bytes_per_rank(MEASURED.bytes_of(MEASURED.length), 4):,.0f} bytes",
    }


# --- 4: the server ---------------------------------------------------------------------------------------------

BOUNDS = (2, 0, 5)
PLAYS = ((2, 2, 17), (3, 1, 2), (3, 0, 22), (4, 3, 26), (1, 0, 5), (5, 2, 8))  # workers, bound, seed
REAL = (3, 2, 6)  # workers, bound, steps of each


@exercise(
    title="A server with bounded staleness",
    difficulty=3,
    minutes=30,
    timeout=180,
    parts={"bound and staleness": 2, "on real ranks": 1},
)
def server(Server: Any) -> dict[str, Any]:
    """Judge the class ``Server(weights, workers, bound, lr)`` with its methods ``pull`` and ``push``."""
    for bound, found in zip(BOUNDS, run(servers.fast_worker, Server, BOUNDS, timeout=SECONDS), strict=True):
        _judge_fast(bound, found)
    stalest = 0
    for (workers, bound, _), events in zip(PLAYS, run(servers.plays, Server, PLAYS, timeout=SECONDS), strict=True):
        for event in events:
            _judge_event(workers, bound, event)
        stalest = max([stalest, *(event["staleness"] for event in events if event["what"] == "push")])
    weights, right = run(servers.in_step, Server, timeout=SECONDS)
    expect("With bound 0 and workers in step, the weights are not those of synchronous training", weights, right)
    passed("bound and staleness")
    leads, weights, right = run(servers.on_ranks, Server, *REAL, ranks=REAL[0] + 1, timeout=SECONDS)[0]
    expect("On real ranks, the last weights are not the first ones minus all updates", weights, right)
    expect("On real ranks, the fastest worker is further ahead than the bound, or never as far", max(leads), REAL[1])
    return {
        "schedules": len(PLAYS),
        "largest staleness": stalest,
        "on real ranks": f"{REAL[0] * REAL[2]} updates, at most {max(leads)} steps ahead, as the bound says",
    }


def _steps(count: int) -> str:
    return f"{count} step{'s' if count != 1 else ''}"


def _judge_fast(bound: int, found: dict[str, int]) -> None:
    """How far a worker gets while the other one sleeps."""
    steps, right = found["alone"], bound + 1
    sentence = ""
    if steps >= servers.MOST_STEPS:
        sentence = "nobody ever has to wait: a worker that is more steps ahead of the slowest than the bound waits"
    elif steps == 1 and bound > 1:
        sentence = "everybody waits for everybody after each step, whatever the bound: that is synchronous training"
    elif steps == right + 1:
        sentence = "the bound is one too wide: a worker that is bound + 1 steps ahead already waits"
    elif steps == right - 1:
        sentence = "the bound is one too narrow: a worker that is exactly `bound` steps ahead may still go on"
    elif steps != right:
        sentence = "a worker may go on while it is at most `bound` steps ahead of the slowest"
    if sentence:
        raise Wrong(
            f"{sentence}. See bound {bound}, where worker 1 has done nothing yet",
            measured=f"worker 0 takes {_steps(steps)}",
            expected=_steps(right),
        )
    if not found["slow may"]:
        raise Wrong(f"with bound {bound} the slowest worker has to wait too: then nobody ever goes on.")
    if found["after a pull"]:
        raise Wrong("a worker has taken a step when it pushes, not when it pulls: until then the others wait for it.")
    expect(f"With bound {bound} the slow worker takes a step, and the fast one may take one more", found["then"], 1)


def _judge_event(workers: int, bound: int, event: servers.Event) -> None:
    """One event of a schedule."""
    where = f"See a schedule of {workers} workers with bound {bound}"
    worker = event["worker"]
    if event["what"] == "kept":
        raise Wrong(
            f"the weights that worker {worker} had pulled have changed in its hands: give each worker a copy, "
            "or do not change the server's tensor in place."
        )
    if event["what"] == "push":
        hint = "count the updates of the others between this worker's pull and its push, before its own is applied"
        expect(f"The staleness is not right: {hint}. {where}", event["got"], event["staleness"])
        return
    ahead = event["done"][worker] - min(event["done"])
    if event["waits"] != event["should"]:
        what = "has to wait" if event["waits"] else "gets weights"
        raise Wrong(
            f"worker {worker} is {_steps(ahead)} ahead of the slowest and {what}: compare the steps that it has pushed "
            f"with those of the slowest worker. {where}",
            measured=f"steps done: {event['done']}",
        )
    if not event["waits"]:
        sentence = (
            "The weights are not the first ones minus lr · gradient for every gradient pushed so far, late ones too"
        )
        expect(f"{sentence}. {where}", event["weights"], event["right"])
