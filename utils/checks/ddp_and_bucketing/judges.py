"""How the checks of this lab judge what a step of training did: collectives, moments, gradients.

Every judge gets the model's weights and what each rank saw, rank 0 first. It raises ``Wrong`` or returns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from utils.checks.ddp_and_bucketing.gradients import judge_gradients
from utils.checks.verdicts import Wrong

if TYPE_CHECKING:
    from utils.checks.ddp_and_bucketing.small_models import Weight

Facts = dict[str, Any]


def calls_of(facts: Facts, name: str = "all_reduce") -> list[dict[str, Any]]:
    return [call for call in facts["calls"] if call["name"] == name]


def judge_kinds(facts: Sequence[Facts], allowed: str) -> None:
    """One kind of collective only."""
    for rank, one in enumerate(facts):
        others = [*one["strangers"], *(call["name"] for call in one["calls"] if call["name"] != allowed)]
        if others:
            what = "an all_reduce that is not dist.all_reduce" if others[0] == allowed else others[0]
            raise Wrong(f"rank {rank} calls {what}: only dist.{allowed} is needed here.")


# --- all-reduces: how many, and of what ----------------------------------------------------------------------


def judge_bytes(weights: Sequence[Weight], facts: Sequence[Facts], where: str) -> None:
    """All trainable weights travel once, in as many all-reduces as there are weights, or fewer."""
    judge_kinds(facts, "all_reduce")
    trainable = [weight for weight in weights if weight.trainable]
    right = sum(weight.bytes for weight in trainable)
    most = len(trainable)
    for rank, one in enumerate(facts):
        calls = calls_of(one)
        sent = sum(call["bytes"] for call in calls)
        if sent == right and len(calls) <= most:
            continue
        if not calls:
            raise Wrong(
                f"rank {rank} starts no all_reduce at all, so every rank keeps its own gradients. {where}",
                expected=f"{right:,} bytes",
            )
        raise Wrong(
            f"{_why(weights, Counter(map(_key, calls)), sent, right)}. {where}",
            measured=f"{len(calls)} all-reduces, {sent:,} bytes",
            expected=f"at most {most} all-reduces, {right:,} bytes",
        )


def judge_one_each(weights: Sequence[Weight], facts: Sequence[Facts], where: str) -> None:
    """One all-reduce for each trainable weight."""
    judge_bytes(weights, facts, where)
    trainable = [weight for weight in weights if weight.trainable]
    for rank, one in enumerate(facts):
        calls = calls_of(one)
        if Counter(map(_key, calls)) != Counter((weight.bytes, weight.dtype) for weight in trainable):
            raise Wrong(
                f"rank {rank} sends several gradients in one all_reduce: here each parameter gets its own. {where}",
                measured=f"{len(calls)} all-reduces",
                expected=len(trainable),
            )


def _why(weights: Sequence[Weight], sent: Counter[tuple[int, str]], total: int, right: int) -> str:
    """The likely reason for a wrong number of bytes, or of all-reduces."""
    trainable = Counter((weight.bytes, weight.dtype) for weight in weights if weight.trainable)
    extra, missing = sent - trainable, trainable - sent
    frozen = [weight for weight in weights if not weight.trainable]
    tied = [weight for weight in weights if len(weight.names) > 1 and weight.trainable]
    if total > right and total % right == 0:
        return f"every gradient travels {total // right} times in a step"
    if frozen and total == right + sum(weight.bytes for weight in frozen):
        return f"frozen parameters are sent, too: `{frozen[0].name}` never gets a gradient"
    if tied and total == right + sum(weight.bytes for weight in tied):
        names = "` and `".join(tied[0].names)
        return f"the tied weight (`{names}` are one tensor) travels twice: it is one parameter with one gradient"
    if missing and not extra:
        lost = [weight.name for weight in weights if weight.trainable and missing[weight.bytes, weight.dtype]]
        return f"{len(lost)} of {trainable.total()} gradients never travel, such as that of `{lost[0]}`"
    if total == right:
        return "the gradients travel in more pieces than there are parameters"
    return f"{'more' if total > right else 'less'} travels than the gradients of the trainable parameters"


def _key(call: dict[str, Any]) -> tuple[int, str]:
    return call["bytes"], call["dtype"]


# --- moments ---------------------------------------------------------------------------------------------------


def judge_overlap(facts: Sequence[Facts], first_due: Sequence[int], where: str) -> None:
    """Launches and waits on the right side of the end of backward, whatever is launched.

    Args:
        first_due: for each rank, how many gradients are ready when the first all-reduce may go.
    """
    for rank, (one, due) in enumerate(zip(facts, first_due, strict=True)):
        calls, last = calls_of(one), len(one["ready"])
        early = [call for call in calls if call["phase"] == "backward"]
        seen = {"measured": f"{last} of {last} gradients ready at the first launch", "expected": due}
        if calls and not early and due < last:
            raise Wrong(
                f"this is a blocking DDP: the first all_reduce of rank {rank} starts when backward has ended, so no "
                f"communication is hidden behind computation. Launch it in a hook. {where}",
                **seen,
            )
        if any(not call["asynchronous"] and call["ready"] < last for call in early):
            raise Wrong(
                f"rank {rank} calls all_reduce without async_op=True in a hook: backward stands still until it is "
                f"done. {where}."
            )
        if waits := [call for call in early if call["waited"] and call["waited"][1] < last]:
            raise Wrong(
                f"rank {rank} waits while backward is still running: a wait inside a hook stops backward. Wait in "
                f"finish(). {where}",
                measured=f"{len(waits)} waits before the last gradient was ready",
                expected=0,
            )
        if calls and due < last and all(call["ready"] == last for call in calls):
            raise Wrong(
                f"rank {rank} launches all its all-reduces when the last gradient is ready: then nothing is left to "
                f"hide them behind. {where}",
                **seen,
            )


def judge_waits(facts: Sequence[Facts], where: str) -> None:
    """Everything is waited for, and left alone until then."""
    for rank, one in enumerate(facts):
        calls = calls_of(one)
        if changed := [call for call in calls if call["changed"]]:
            raise Wrong(
                f"rank {rank} changes a gradient that is still travelling: between all_reduce(…, async_op=True) and "
                f"wait() nobody may touch the tensor. Divide before the launch or after the wait. {where}",
                measured=f"{len(changed)} of {len(calls)} all-reduces",
            )
        if forgotten := [call for call in calls if call["waited"] is None]:
            raise Wrong(
                f"rank {rank} never waits for {len(forgotten)} of {len(calls)} all-reduces, and the optimizer may take "
                f"gradients that have not arrived: call wait() on each of them. {where}."
            )


def judge_moments(weights: Sequence[Weight], facts: Sequence[Facts], where: str) -> None:
    """Exercise 2: each gradient is launched as soon as it is ready."""
    judge_overlap(facts, [1] * len(facts), where)
    names = {(weight.bytes, weight.dtype): weight.name for weight in weights if weight.trainable}
    for rank, one in enumerate(facts):
        for call in calls_of(one):
            name = names[_key(call)]
            # A hook of the tensor itself runs just before the gradient is accumulated.
            place = one["ready"].index(name)
            if not place <= call["ready"] <= place + 1:
                raise Wrong(
                    f"rank {rank} launches the gradient of `{name}` too {'late' if call['ready'] > place else 'early'}:"
                    f" launch each one in its own hook. {where}",
                    measured=f"{call['ready']} gradients ready at the launch",
                    expected=place + 1,
                )
    judge_waits(facts, where)


# --- exercise 1: the broadcast -----------------------------------------------------------------------------------


def judge_broadcast(weights: Sequence[Weight], buffers: Iterable[str], facts: Sequence[Facts], where: str) -> None:
    """Everything is rank 0's; every tensor travels once. ``state`` and ``before`` are by name."""
    judge_kinds(facts, "broadcast")
    for rank, one in enumerate(facts):
        if forgotten := sum(call["waited"] is None for call in one["calls"]):
            raise Wrong(f"rank {rank} never waits for {forgotten} of {len(one['calls'])} broadcasts. {where}.")
    buffers = list(buffers)
    right = facts[0]["before"]
    for rank, one in enumerate(facts):
        for name, value in right.items():
            if bool((one["state"][name] == value).all()):
                continue
            kind = "the buffer" if name in buffers else "the parameter"
            if bool((one["state"][name] == one["before"][name]).all()):
                why = "is still its own"
                if name in buffers:
                    why += ": model.parameters() holds no buffers, and model.state_dict() not all of them; "
                    why += "model.buffers() holds all"
            else:
                why = "is neither its own nor rank 0's"
            raise Wrong(f"on rank {rank} {kind} `{name}` {why}. {where}.")
    total = sum(weight.bytes for weight in weights) + sum(right[name].nbytes for name in buffers)
    count = len(weights) + len(buffers)
    for rank, one in enumerate(facts):
        calls = calls_of(one, "broadcast")
        sent = sum(call["bytes"] for call in calls)
        if sent == total and len(calls) <= count:
            continue
        tied = sum(weight.bytes * (len(weight.names) - 1) for weight in weights)
        why = "every tensor travels once, in at most one broadcast each"
        if sent == total + tied:
            why = "the tied weight has two names, but it is one tensor: parameters() has it once, state_dict() twice"
        raise Wrong(
            f"rank {rank} broadcasts {'more' if sent > total else 'less'} than it has to: {why}. {where}",
            measured=f"{len(calls)} broadcasts, {sent:,} bytes",
            expected=f"at most {count} broadcasts, {total:,} bytes",
        )


# --- exercise 4: no_sync -----------------------------------------------------------------------------------------


def judge_silence(facts: Sequence[Facts], where: str) -> None:
    """Nothing travels."""
    for rank, one in enumerate(facts):
        if names := [call["name"] for call in one["calls"]] + one["strangers"]:
            raise Wrong(
                f"rank {rank} communicates inside no_sync(): there a gradient only adds up on its own rank. {where}",
                measured=f"{len(names)} collectives",
                expected=0,
            )


# --- exercise 5: unused parameters ---------------------------------------------------------------------------------


def judge_unused(weights: Sequence[Weight], facts: Sequence[Facts], where: str) -> None:
    """At most one all-reduce per trainable parameter, and one small one more; then the numbers."""
    judge_kinds(facts, "all_reduce")
    trainable = [weight for weight in weights if weight.trainable]
    most, small = len(trainable) + 1, 8 * len(trainable)
    enough = sum(weight.bytes for weight in trainable) + small
    for rank, one in enumerate(facts):
        calls = calls_of(one)
        sent = sum(call["bytes"] for call in calls)
        if len(calls) > most or sent > enough:
            raise Wrong(
                f"rank {rank} needs more than one small all_reduce to learn what the others have used: put all flags "
                f"into one tensor. {where}",
                measured=f"{len(calls)} all-reduces, {sent:,} bytes",
                expected=f"at most {most} all-reduces, {enough:,} bytes",
            )
    judge_waits(facts, where)
    judge_gradients(facts, where)
