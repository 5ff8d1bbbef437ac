"""What a function communicates, seen from outside of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from checks.engine.inside import Outcome
from checks.engine.refusing import refuse
from checks.engine.wire import Wire
from utils.ranks.recorder import record_collectives

_wires: list[Wire] = []


class Watched:
    """The collectives and messages of a learner's call, in order, as plain data (see ``Launch`` for what each has).

    Torch's functional collectives come behind all others; they wait by themselves."""

    def __init__(self, wire: Wire) -> None:
        self._wire, self.calls = wire, []  # type: ignore[var-annotated]

    def mark(self, what: Any = None) -> None:
        """Something else has been done: each call knows how many marks were there when it began, and when it was
        waited for (``ready`` and ``waited``)."""
        self._wire.ready.append(what)

    def coming(self) -> list[Any]:
        """The tensors into which something is being received at this moment."""
        mine = [one for one in self._wire.launches if one.waited is None]
        return [theirs for one in mine for theirs, arriving, _ in one.pairs if arriving is not None]

    def sent(self, *names: str) -> int:
        """Bytes that this rank has handed in, of these calls or of all."""
        mine = [call for call in self.calls if not names or call["name"] in names]
        return sum(call["bytes"] for call in mine if call["name"] != "recv")


@contextlib.contextmanager
def watched(allowed: Sequence[str] = ()) -> Iterator[Watched]:
    """On ranks, in the block: all that a learner's function communicates, and it arrives only when it is waited for.

    Args:
        allowed: what may be called ("send", "all_to_all"); anything, if none is named.

    Raises:
        Wrong: something was not waited for, or is not allowed.
    """
    if not _wires or _wires[-1].stopped:
        _wires.append(Wire())
    wire = _wires[-1]
    found = Watched(wire)
    with wire.listening(), record_collectives() as record:  # (it sees what no method of a group is called for)
        yield found
        wire.end_of_step()
    functional = [vars(one) | {"members": [*one.ranks], "waited": 0} for one in record.calls]
    found.calls = wire.found()["calls"] + functional
    for call in found.calls:
        refuse(call["waited"] is None, f"never waits for {call['name']}: call wait() on what it returns")
        refuse(
            allowed and call["name"] not in allowed,
            f"calls {call['name']}, and {' and '.join(allowed)} is all that this exercise needs",
        )


@contextlib.contextmanager
def explained(words: str) -> Iterator[None]:
    """If ranks do not call the same in the block, these words are added."""
    try:
        yield
    except Outcome as outcome:
        if "the same collectives" in outcome.record["sentence"]:
            outcome.record["sentence"] += f". {words}"
        raise


def messages(calls: Sequence[dict[str, Any]]) -> list[tuple[int, int]]:
    """Of the calls of one rank, what it has sent to single ranks, in order: to whom, and how many bytes."""
    return [(call["peer"], call["bytes"]) for call in calls if call["name"] == "send"]


def waits(calls: Sequence[dict[str, Any]]) -> None:
    """Refuse who writes to a tensor that is on its way."""
    name = next((call["name"] for call in calls if call["changed"]), "")
    refuse(name, f"changes a tensor while {name} is still using it: call wait() first")


def at_most(calls: Sequence[dict[str, Any]], count: int, nbytes: int, why: str) -> None:
    """Refuse more collectives than so many, or one that is given more bytes; ``why``: how they are saved."""
    few, fault = f"at most {count}", f"there are too many collectives: {why}"
    refuse(len(calls) > count, fault, measured=len(calls), expected=few)
    largest = max((call["bytes"] for call in calls), default=0)
    refuse(largest > nbytes, f"too many bytes in a collective: {why}", measured=largest, expected=f"at most {nbytes}")
