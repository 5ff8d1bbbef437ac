"""What this lab's checks say about the five repaired programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from utils.algorithms.recorder import Record
from utils.checks.compare import expect
from utils.checks.torchrun.programs import FEATURES, GOOD, SHAPES, Facts, Losses, Step, part
from utils.checks.verdicts import Wrong

NUMBERS_BYTES = 16  # two numbers
TALK_A_STEP = 2  # collectives
PICKLED = 1000  # bytes that all_gather_object may add


# --- a rank that leaves ----------------------------------------------------------------------------------------

LOSSES = {
    3: [
        Losses("rank 0 is good first", (((6, 10), (4, 10), (3, 10), (2, 10), (2, 10)),
                                        ((9, 10), (8, 10), (7, 10), (4, 10), (4, 10)),
                                        ((9, 10), (7, 10), (6, 10), (6, 10), (6, 10)))),
        Losses("never good enough", (((9, 10), (4, 10)), ((9, 10), (9, 10)), ((9, 10), (9, 10)))),
        Losses("ranks with 1, 2 and 20 samples", (((0.25, 1), (0.25, 1), (0.25, 1)), ((0.5, 2), (0.5, 2), (0.5, 2)),
                                                  ((18.0, 20), (16.0, 20), (10.0, 20)))),
        Losses("rank 1 has no samples", (((9, 10), (8, 10), (4, 10)), ((0, 0), (0, 0), (0, 0)),
                                         ((9, 10), (7, 10), (5, 10)))),
        Losses("good at once", (((1, 10), (1, 10)), ((2, 10), (2, 10)), ((4, 10), (4, 10)))),
    ],
    1: [Losses("one rank", (((6, 10), (4, 10), (3, 10)),))],
}  # fmt: skip


def right_epochs(case: Losses, good: Callable[[int], bool] | None = None) -> int:
    """So many epochs are trained if ``good(epoch)`` decides; by default the mean over all samples does."""
    good = good or (lambda epoch: case.mean(epoch) < GOOD)
    return next((epoch + 1 for epoch in range(case.most) if good(epoch)), case.most)


UNTIL_MISTAKES: dict[str, Callable[[Losses], int]] = {
    "It never stops early: the ranks must still stop when the loss is good enough, all in the same epoch": (
        lambda case: case.most
    ),
    "It stops as soon as the loss of one rank is good enough": lambda case: right_epochs(
        case, lambda epoch: min(case.means(epoch)) < GOOD
    ),
    "It stops only when the loss of each single rank is good enough": lambda case: right_epochs(
        case, lambda epoch: max(case.means(epoch)) < GOOD
    ),
    "It takes the mean of the ranks' means: a rank with 1 sample then weighs as much as one with 20": (
        lambda case: right_epochs(case, lambda epoch: sum(case.means(epoch)) / len(case.per_rank) < GOOD)
    ),
    "All ranks do what the loss of rank 0 says, and nobody asks the others for theirs": lambda case: right_epochs(
        case, lambda epoch: case.means(epoch)[0] < GOOD
    ),
}


def judge_until(cases: list[Losses], found: list[list[Facts]]) -> int:
    """Right number of epochs everywhere? Returns the largest number of collectives in an epoch."""
    most = 0
    trained = [[facts["epochs"] for facts in per_case] for per_case in zip(*found, strict=True)]
    for case, epochs, facts in zip(cases, trained, zip(*found, strict=True), strict=True):
        right = right_epochs(case)
        if set(epochs) != {right}:
            for sentence, wrong_way in UNTIL_MISTAKES.items():
                # What one mistake explains everywhere is that mistake.
                if all(set(some) == {wrong_way(one)} for one, some in zip(cases, trained, strict=True)):
                    raise Wrong(f"{sentence} ({case})", measured=epochs[0], expected=right)
            raise Wrong(f"{case}: not the right number of epochs", measured=epochs, expected=right)
        for rank, one in enumerate(facts):
            expect(f"{case}: rank {rank} does not return how many epochs were trained", one["returned"], right)
            calls = Record.from_plain(one["calls"]).calls
            most = max(most, -(-len(calls) // right))
            if len(calls) > TALK_A_STEP * right:
                raise Wrong(
                    "Sum and number fit into one tensor, so an epoch needs one collective",
                    measured=f"{len(calls)} in {right} epochs",
                    expected=f"at most {TALK_A_STEP * right}",
                )
            if any(call.bytes > NUMBERS_BYTES for call in calls):
                raise Wrong(
                    "Each rank has two numbers to tell",
                    measured=f"{max(call.bytes for call in calls)} bytes",
                    expected=f"at most {NUMBERS_BYTES}",
                )
    return most


# --- all send --------------------------------------------------------------------------------------------------


def judge_shifts(found: list[list[Facts]]) -> None:
    """Did every rank get what its left neighbour had, with one send of its own tensor?"""
    world_size = len(found)
    for (shape, _), *per_rank in zip(SHAPES, *found, strict=True):
        for rank, facts in enumerate(per_rank):
            where = f"rank {rank} of {world_size}, a tensor of shape {list(shape)}"
            if facts["changed"]:
                raise Wrong(f"The tensor that was given is changed, maybe while it was being sent ({where})")
            if facts["kind"] != "Tensor":
                raise Wrong(f"shift returns a tensor, not {facts['kind']} ({where})")
            if not facts["same type"]:
                raise Wrong(f"What is returned has another shape or data type than what was sent ({where})")
            left, right = (rank - 1) % world_size, (rank + 1) % world_size
            if facts["sender"] != left:
                _judge_sender(facts["sender"], rank, right, left, where)
            _judge_traffic(facts, right, world_size, where)


def _judge_sender(sender: int | None, rank: int, right: int, left: int, where: str) -> None:
    if sender is None:
        raise Wrong(
            f"What came back is no rank's tensor: has it arrived yet, when you return it? irecv must be "
            f"waited for ({where})"
        )
    if sender == rank:
        raise Wrong(f"Nothing was exchanged: a rank gets its own tensor back ({where})")
    if sender == right:
        raise Wrong(f"The wrong way round: send to rank + 1, receive from rank - 1 ({where})")
    raise Wrong(f"A rank must get the tensor of its left neighbour ({where})", measured=sender, expected=left)


def _judge_traffic(facts: Facts, right: int, world_size: int, where: str) -> None:
    record = Record.from_plain(facts["calls"])
    others = [call.name for call in record.calls if call.name not in ("send", "recv")]
    if others:
        raise Wrong(
            f"Each rank has one tensor for one neighbour: {others[0]} moves more than that. "
            f"Repair the order of send and recv ({where})",
            measured=record.names,
            expected=["send", "recv"],
        )
    if world_size > 1 and (record.sent_bytes != facts["bytes"] or [c.peer for c in record.of("send")] != [right]):
        raise Wrong(
            f"Each rank sends its own tensor once, to its right neighbour ({where})",
            measured=f"{len(record.of('send'))} sends, {record.sent_bytes} bytes",
            expected=f"1 send, {facts['bytes']} bytes",
        )


# --- parts of different length ---------------------------------------------------------------------------------

LENGTHS = {3: [(3, 5, 2), (4, 4, 4), (0, 4, 1), (0, 0, 0), (1, 0, 700)], 1: [(3,)]}
DIFFERENT = (
    "gloo itself gives up, and the process is gone: the ranks hand in tensors of different length, and all_gather "
    "wants the same from each"
)


def judge_gathered(cases: list[tuple[int, ...]], found: list[list[Facts]]) -> int:
    """All predictions, in rank order, on all ranks? Returns the most collectives of a call."""
    most = 0
    for lengths, *per_rank in zip(cases, *found, strict=True):
        right = [value for rank, length in enumerate(lengths) for value in part(rank, length)]
        for rank, facts in enumerate(per_rank):
            where = f"lengths {', '.join(map(str, lengths))}, rank {rank}"
            got = facts["result"]
            if got is None:
                raise Wrong(f"Every rank needs the result, and this one returns None ({where})")
            if not isinstance(got, dict):
                raise Wrong(f"gather_all returns one tensor ({where})", measured=type(got).__name__)
            if got["values"] != right:
                _judge_values(got["values"], right, lengths, where)
            expect(f"Another data type ({where})", got["dtype"], "torch.int64")
            record = Record.from_plain(facts["calls"])
            most = max(most, len(record.calls))
            if len(record.calls) > TALK_A_STEP:
                raise Wrong(
                    f"Lengths first, then all parts at once ({where})",
                    measured=f"{len(record.calls)} collectives",
                    expected=f"at most {TALK_A_STEP}",
                )
            room = 8 * max(lengths) + PICKLED
            handed = max((call.bytes for call in record.calls), default=0)
            if handed > room:
                raise Wrong(
                    f"Pad to the longest part, and no further ({where})",
                    measured=f"{handed:,} bytes",
                    expected=f"at most {room:,}",
                )
    return most


def _judge_values(got: list[int], right: list[int], lengths: tuple[int, ...], where: str) -> None:
    figures = {"measured": f"{len(got)} values", "expected": f"{len(right)} values"}
    if len(got) == len(lengths) * max(lengths):
        raise Wrong(f"The padding is still in it: cut each part to its own length ({where})", **figures)
    if len(got) == len(lengths) * min(lengths):
        raise Wrong(f"All parts are cut to the shortest one: predictions are lost ({where})", **figures)
    if len(got) < len(right) and any(got == [v for v in right if v not in marks] for marks in ((0,), (-1,), (0, -1))):
        raise Wrong(f"0 and -1 are predictions too: no value can mark the padding ({where})", **figures)
    if sorted(got) == sorted(right):
        raise Wrong(f"All are there, but not in the order of the ranks ({where})", measured=got, expected=right)
    raise Wrong(f"Each part has a length of its own, and these are not all predictions ({where})", **figures)


# --- a swallowed exception -------------------------------------------------------------------------------------

STEPS: list[Step] = [(1, 2, 3), (4, None, 6), (None, None, 5), (None, None, None), (7, 8, 9)]
DEFECT = 1  # in the second run


def right_updates(steps: list[Step] = STEPS) -> list[float]:
    """The mean over the good batches of each step; no update without any."""
    good = [[value for value in step if value is not None] for step in steps]
    return [round(sum(values) / len(values), 4) for values in good if values]


def _all_ranks(step: Step) -> float:
    return round(sum(value or 0 for value in step) / len(step), 4)


EPOCH_MISTAKES: dict[str, list[float]] = {
    "A broken batch counts as a gradient of 0: divide by the number of good batches, not of ranks": [
        _all_ranks(step) for step in STEPS if any(step)
    ],
    "A broken batch counts as a gradient of 0, and a step without any good batch is an update too": [
        _all_ranks(step) for step in STEPS
    ],
    "One broken batch throws the good batches of the other ranks away": [
        _all_ranks(step) for step in STEPS if None not in step
    ],
    "A step without any good batch needs no update: the optimizer's momentum would move the weights": [
        *right_updates(STEPS[:3]),
        0.0,
        *right_updates(STEPS[4:]),
    ],
}


def judge_epoch(found: list[Facts]) -> int:
    """The right updates on all ranks? Returns the number of collectives in the epoch."""
    right = right_updates()
    alone = [[step[rank] for step in STEPS if step[rank] is not None] for rank in range(len(found))]
    for rank, facts in enumerate(found):
        updates = facts["updates"]
        if any(isinstance(value, str) for value in updates):
            raise Wrong(f"update takes a tensor of {FEATURES} numbers", measured=updates)
        if any(value != value for value in updates):
            raise Wrong("In a step without any good batch it divides by 0: such a step needs no update", measured="nan")
        if facts["asked"] != list(range(len(STEPS))):
            raise Wrong("gradient(batch) is called once for each batch", measured=facts["asked"])
        if updates == right:
            continue
        if updates == alone[rank]:
            raise Wrong(f"The ranks no longer average: each updates with its own gradient (rank {rank})")
        for sentence, mistaken in EPOCH_MISTAKES.items():
            if updates == mistaken:
                raise Wrong(f"{sentence} (rank {rank})", measured=updates, expected=right)
        if len(updates) < len(right) and any(other["updates"] == right for other in found):
            raise Wrong(
                f"Rank {rank} does not update where its own batch is broken: its weights then differ from the others'",
                measured=f"{len(updates)} updates",
                expected=f"{len(right)} updates",
            )
        raise Wrong(
            "Gradients of different steps are mixed: in each step every rank must take part, also with a broken batch",
            measured=updates,
            expected=right,
        )
    talk = max(len(facts["calls"]) for facts in found)
    if talk > TALK_A_STEP * len(STEPS):
        raise Wrong(
            "One collective for the gradient, and one for the number of good batches, are enough",
            measured=f"{talk} collectives in {len(STEPS)} steps",
            expected=f"at most {TALK_A_STEP * len(STEPS)}",
        )
    return talk


def judge_defect(ends: list[dict[str, Any]]) -> None:
    """A mistake in the program must come out, so that torchrun sees it and ends all ranks."""
    if ends[1]["state"] != "raised" or "KeyError" not in ends[1]["text"]:
        raise Wrong(
            "It swallows every exception: a KeyError is no broken batch but a mistake in the program, and torchrun "
            "must hear of it. Catch ValueError only",
            measured="rank 1 went on",
        )


# --- a port that is taken --------------------------------------------------------------------------------------


def judge_stores(found: list[Facts]) -> None:
    """Two stores, each shared by all ranks, and apart from each other?"""
    for rank, facts in enumerate(found):
        for kind in facts["kinds"]:
            if kind != "TCPStore":
                raise Wrong(f"open_store returns a TCPStore of its own, on every rank (rank {rank})", measured=kind)
        if any(one["host"] != "127.0.0.1" for one in facts["opened"]):
            raise Wrong("Rank 0 serves at the address that open_store is given", measured=facts["opened"][0]["host"])
        if not all(facts["together"]):
            raise Wrong(f"Rank {rank} does not find in its store what the other ranks have written")
        if not all(facts["apart"]):
            raise Wrong("The two jobs share one store: each would read the other's keys")
