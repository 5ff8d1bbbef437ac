"""How the checks of this lab judge what ``probes`` has seen: the sum, who talks to whom, bytes, messages, memory.

Every judge gets the plan of the launch, the case, and what each rank saw. It raises ``Wrong`` or returns.
"""

from __future__ import annotations

import math

from utils.algorithms.recorder import Collective, Record
from utils.checks.compare import expect, how_far
from utils.checks.parameter_server_and_all_reduce import probes
from utils.checks.parameter_server_and_all_reduce.probes import Case, Facts, Plan
from utils.checks.parameter_server_and_all_reduce.traces import what_was_added
from utils.checks.verdicts import Wrong

INT64 = 8  # bytes


def sends_of(facts: Facts) -> list[Collective]:
    return Record.from_plain(facts["calls"]).of("send")


def _judge_calls(facts: list[Facts], where: str) -> None:
    """Only send and recv."""
    for rank, one in enumerate(facts):
        other = next((call["name"] for call in one["calls"] if call["name"] not in ("send", "recv")), None)
        if other:
            raise Wrong(f"rank {rank} calls {other}, a collective: only send and recv in all their forms. See {where}.")


def _judge_kind(case: Case, facts: list[Facts], where: str) -> None:
    """Numbers travel as what they are."""
    others = {call.dtype for one in facts for call in sends_of(one)} - {case.dtype}
    if others and "int" in case.dtype:
        other = min(others)
        raise Wrong(f"integers travel as {other}: integers stay integers, a float has not enough digits. See {where}.")


def _judge_neighbours(facts: list[Facts], where: str, all_send: bool = True) -> None:
    """Every rank sends to its right neighbour and to nobody else."""
    n = len(facts)
    peers = [sorted({call.peer for call in sends_of(one)}) for one in facts]
    if peers == [[(rank + 1) % n] if n > 1 else [] for rank in range(n)]:
        return
    if n > 1 and peers == [[(rank - 1) % n] for rank in range(n)]:
        raise Wrong(f"your ring runs to the left: rank r sends to rank r + 1. See {where}", measured=peers)
    for rank, others in enumerate(peers):
        if others not in ([], [(rank + 1) % n]):
            raise Wrong(
                f"rank {rank} talks to ranks that are not its right neighbour: in a ring it sends to one rank only. "
                f"See {where}",
                measured=f"it sends to {others}",
                expected=f"to {[(rank + 1) % n]}",
            )
    if all_send and (silent := [rank for rank, others in enumerate(peers) if not others]):
        raise Wrong(f"rank {silent[0]} sends nothing: in a ring every rank sends. See {where}.")


# --- lengths -----------------------------------------------------------------------------------------------------


def judge_lengths(plan: Plan, case: tuple[int, ...], facts: list[Facts]) -> None:
    where = f"lengths {list(case)}"
    _judge_calls(facts, where)
    equal = len(set(case)) == 1
    raised = {rank: one["raised"] for rank, one in enumerate(facts) if one["raised"]}
    silent = [rank for rank in range(len(case)) if rank not in raised]
    if equal and raised:
        rank, (kind, text) = next(iter(raised.items()))
        raise Wrong(f"rank {rank} raises {kind} ({text[:80]}) though all lengths are equal. See {where}.")
    if not equal and silent:
        raise Wrong(
            "not every rank raises an error: those that do not would wait in the all-reduce for those that do. "
            f"See {where}",
            measured=f"ranks {sorted(raised)} raise",
            expected="all ranks raise",
        )
    for rank, (kind, text) in raised.items():
        if kind != "ValueError":
            raise Wrong(f"rank {rank} raises {kind}: raise ValueError, so that a caller can tell. See {where}.")
        if str(list(case)) not in text:
            raise Wrong(
                f"the message of rank {rank} should name the lengths of all ranks, rank 0 first",
                measured=repr(text[:80]),
                expected=f"{list(case)} in it",
            )
    _judge_neighbours(facts, where)
    for rank, one in enumerate(facts):
        sends = sends_of(one)
        if (largest := max((call.bytes for call in sends), default=0)) > INT64:
            raise Wrong(
                f"rank {rank} sends more than a number: a length fits into one int64. See {where}",
                measured=f"a message of {largest} bytes",
                expected=f"{INT64} bytes",
            )
        if len(sends) > (most := len(case) - 1):
            raise Wrong(
                f"rank {rank} sends too often: after N − 1 steps every number has been everywhere. See {where}",
                measured=f"{len(sends)} messages",
                expected=f"at most {most}",
            )


# --- the ring ----------------------------------------------------------------------------------------------------


def judge_ring(plan: Plan, case: Case, facts: list[Facts]) -> None:
    n, where = len(facts), f"{case}, on {plan!r}"
    _judge_calls(facts, where)
    _judge_kind(case, facts, where)
    _judge_sum(plan, case, facts, where)
    _judge_neighbours(facts, where, all_send=case.length >= n)
    chunk, whole = case.bytes_of(math.ceil(case.length / n)), case.bytes_of(case.length)
    target = 2 * (n - 1) / n * whole
    for rank, one in enumerate(facts):
        sends = sends_of(one)
        if (largest := max((call.bytes for call in sends), default=0)) > chunk:
            what = "the whole tensor" if largest >= whole else "more than one chunk"
            raise Wrong(
                f"rank {rank} sends {what} in one message: cut the tensor into {n} chunks and send one in each step. "
                f"See {where}",
                measured=f"{largest:,} bytes in a message, {sum(call.bytes for call in sends):,} in all",
                expected=f"at most {chunk:,.0f} in a message, about {target:,.0f} in all",
            )
        _judge_bytes(f"rank {rank} sends", sends, target, chunk, f"2(N − 1)/N · S. See {where}")
        if len(sends) > (most := 2 * (n - 1)):
            raise Wrong(
                f"rank {rank} takes more steps than a ring needs: N − 1 to add up, N − 1 to hand out. See {where}",
                measured=f"{len(sends)} messages",
                expected=f"at most {most}",
            )
        _judge_memory(rank, one["extra"], chunk, f"a chunk of S/N. See {where}")


# --- two levels ------------------------------------------------------------------------------------------------


def sent_bytes(facts: Facts) -> int:
    """What one rank sent."""
    return sum(call.bytes for call in sends_of(facts))


def sent_between(plan: Plan, facts: list[Facts]) -> list[int]:
    """What each node sent to other nodes."""
    nodes, per_node = plan.shape
    between = [
        sum(call.bytes for call in sends_of(one) if call.peer // per_node != rank // per_node)
        for rank, one in enumerate(facts)
    ]
    return [sum(between[node * per_node : (node + 1) * per_node]) for node in range(nodes)]


def judge_levels(plan: Plan, case: Case, facts: list[Facts]) -> None:
    """A case of exercise 3."""
    nodes, per_node = plan.shape
    where = f"{case}, on {plan!r}"
    _judge_calls(facts, where)
    _judge_kind(case, facts, where)
    _judge_sum(plan, case, facts, where)
    share = math.ceil(case.length / per_node)
    whole, chunk = case.bytes_of(case.length), case.bytes_of(share)
    across = 2 * (nodes - 1) / nodes * whole
    within = case.bytes_of(math.ceil(share / nodes) + 1)  # the shares of two ranks may differ by one
    _judge_not_flat(plan, facts, across, where)
    for node, sent in enumerate(sent_between(plan, facts)):
        if sent > across + per_node * within:
            times = sent / across if across else math.inf
            raise Wrong(
                f"node {node} sends {times:.1f} times what it has to: add up inside the node first, then every "
                f"rank takes only its share of S/L to the other nodes. See {where}",
                measured=f"{sent:,} bytes",
                expected=f"{across:,.0f} bytes, 2(M − 1)/M · S",
            )
    for rank, one in enumerate(facts):
        node, local = divmod(rank, per_node)
        calls = sends_of(one)
        abroad = [call for call in calls if call.peer // per_node != node]
        if any(call.peer % per_node != local for call in abroad):
            raise Wrong(
                f"rank {rank} sends to another local rank of another node: its partners there are the ranks with its "
                f"own local rank, which hold the same share. See {where}",
                measured=f"it sends to {sorted({call.peer for call in abroad})}",
            )
        if sum(call.bytes for call in abroad) > across / per_node + within:
            raise Wrong(
                f"rank {rank} carries more than its share between the nodes, while the others of its node wait: "
                f"each of the {per_node} ranks takes S/L. See {where}",
                measured=f"{sum(call.bytes for call in abroad):,} bytes",
                expected=f"about {across / per_node:,.0f} bytes",
            )
        inside = [call for call in calls if call not in abroad]
        target = 2 * (per_node - 1) / per_node * whole
        _judge_bytes(f"rank {rank} sends inside its node", inside, target, chunk, f"2(L − 1)/L · S. See {where}")
        _judge_memory(rank, one["extra"], chunk, f"a share of S/L. See {where}")


def _judge_not_flat(plan: Plan, facts: list[Facts], across: float, where: str) -> None:
    n, peers = len(facts), [{call.peer for call in sends_of(one)} for one in facts]
    if min(plan.shape) > 1 and all(others == {(rank + 1) % n} for rank, others in enumerate(peers)):
        raise Wrong(
            "this is one flat ring through all ranks, which sends 2(N − 1)/N · S from node to node: add up inside the "
            f"node first. See {where}",
            measured=f"{max(sent_between(plan, facts)):,} bytes from a node",
            expected=f"{across:,.0f} bytes, 2(M − 1)/M · S",
        )


# --- what both all-reduces have in common ----------------------------------------------------------------------


def _judge_bytes(what: str, sends: list[Collective], target: float, within: float, formula: str) -> None:
    sent = sum(call.bytes for call in sends)
    if abs(sent - target) > within:
        raise Wrong(
            f"{what} {'more' if sent > target else 'less'} than it should, {formula}",
            measured=f"{sent:,} bytes",
            expected=f"{target:,.0f} bytes, give or take {within:,.0f}",
        )


def _judge_memory(rank: int, extra: int, chunk: float, what: str) -> None:
    if extra > chunk:
        raise Wrong(
            f"rank {rank} holds more than its tensor and one chunk at the same time: add in place (chunk += received), "
            f"and copy or pad nothing. The limit is {what}",
            measured=f"{extra:,} bytes beside the tensor",
            expected=f"at most {chunk:,.0f}",
        )


def _judge_sum(plan: Plan, case: Case, facts: list[Facts], where: str) -> None:
    n, right = len(facts), case.total(len(facts))
    if all(how_far(one["after"], right, relative=1e-4, absolute=1e-4) is None for one in facts) and (
        right.dtype.is_floating_point or all((one["after"] == right).all() for one in facts)
    ):
        return
    if all(bool((one["after"] == case.numbers(rank)).all()) for rank, one in enumerate(facts)) and n > 1:
        raise Wrong(
            "the tensor is what it was before: work in place. `tensor = …` inside a function only renames; "
            f"`chunk += …`, `chunk.copy_(…)` and recv change it. See {where}."
        )
    misfit = probes.misfit({rank: probes.messages_of(one) for rank, one in enumerate(facts)})
    if misfit:
        raise Wrong(f"a message does not fit the place for it: {misfit}. Both must mean the same chunk. See {where}.")
    if case.kind == "trace":
        sentence = what_was_added(plan, [one["after"].tolist() for one in facts], any(sent_between(plan, facts)))
        raise Wrong(f"{sentence}. See {where}.")
    large = " Integers stay integers: a float has not enough digits for them" if "int" in case.kind else ""
    for rank, one in enumerate(facts):
        expect(f"rank {rank} has not the sum.{large} See {where}", one["after"], right, relative=1e-4, absolute=1e-4)
