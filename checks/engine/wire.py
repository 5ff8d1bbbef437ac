"""The wire stands between a learner's communication and gloo: what is sent arrives as late as it may.

A collective may be over before its ``wait`` is called, or not, so a forgotten ``wait`` gives right numbers now and
then. On this wire a tensor holds its old numbers until somebody waits; a tensor that is touched on the way is noticed;
and before a collective happens, all ranks tell each other which one it is, so that ranks that disagree do not hang.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NoReturn
from unittest import mock

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes

from checks.engine.inside import Outcome
from checks.engine.launches import MESSAGES, METHODS, Launch, copied, flat, swapped
from checks.engine.messages import RETURNED, STOPPED, Alone, Messages
from utils.ranks.output import said_alike

NEW_GROUP = "_new_group_with_tag"  # all ways of torch to make a group come through here
OVER = "nothing more: its step is over"


class Stop(Outcome):
    """Ends the play on this rank; all ranks get one at the same time."""

    def __init__(self, sentence: str) -> None:
        super().__init__("wrong", sentence)


class Wire:
    """All communication of a rank, in order. Every rank of the world makes one at the same moment."""

    def __init__(self) -> None:
        self._group = dist.new_group()  # for the ranks' own words to each other
        self._messages = Messages(self._group)
        self._size = self._group.size()  # as it is now, whatever an answer makes of ProcessGroup
        self._originals: dict[str, Callable[..., Any]] = {}
        self.stopped = ""  # the sentence, if the play was ended
        self._open: list[Launch] = []  # begun by the learner, and not yet by gloo
        self._begin()

    def _begin(self) -> None:
        self.launches: list[Launch] = []
        self.ready: list[Any] = []

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """In the ``with`` block, this rank's communication goes over the wire."""
        self._begin()
        group, module = dist.ProcessGroup, dist.distributed_c10d
        self._originals = {name: getattr(group, name) for name in METHODS if name in vars(group)}
        with contextlib.ExitStack() as stack:
            for name in self._originals:
                stack.enter_context(mock.patch.object(group, name, self._noting(name)))
            stack.enter_context(mock.patch.object(module, NEW_GROUP, self._grouping(getattr(module, NEW_GROUP))))
            yield

    def end_of_step(self) -> dict[str, Any]:
        """Make sure that all ranks have begun the same, and say what this one has done.

        Raises:
            Stop: on every rank, if they have not.
        """
        with self._quiet():
            while self._open:
                self._deliver_next()
            self._messages.end(RETURNED)
            self._agree(OVER)
            self._messages.forget()
        return self.found()

    def found(self) -> dict[str, Any]:
        """What was noted since ``listening`` began, as plain data."""
        return {"calls": [one.plain() for one in self.launches], "ready": list(self.ready)}

    def wait(self, launch: Launch) -> None:
        """Deliver everything up to this launch, and put its result into its tensors (the first time)."""
        with self._quiet():
            while launch in self._open:
                self._deliver_next()
            if not launch.whole and launch.work is not None:
                launch.work.wait()
            if launch.name in MESSAGES and launch.waited is None:
                self._message(self._messages.finish, launch)
            if launch.waited is None:
                launch.waited = len(self.ready)
                launch.arrive()

    def stop(self, sentence: str) -> NoReturn:
        self.stopped = self.stopped or sentence
        raise Stop(sentence)

    def _message(self, part: Callable[..., None], *arguments: Any) -> None:
        """Begin or finish a message; where that cannot be, all ranks stop."""
        try:
            part(*arguments)
        except Alone as alone:
            self._messages.end(STOPPED)
            self._agree("alone", (alone.telling, str(alone)))

    def _noting(self, method: str) -> Callable[..., Any]:
        def noted(group: Any, *arguments: Any, **named: Any) -> Any:
            original = self._originals[method]
            if group is self._group:
                return original(group, *arguments, **named)
            with self._quiet():
                launch = Launch.of(method, group, (*arguments, *named.values()))
                tensors = flat([*arguments, *named.values()])
                if launch.name in MESSAGES and not tensors[0].is_contiguous():
                    raise RuntimeError("input tensor has to be contiguous")  # (torch's words)
                launch.ready = len(self.ready)
                self.launches.append(launch)
                mine = {id(one): copied(one) for one in tensors}
                ins, outs = (_at(arguments, place) for place in METHODS[method][1:])
                launch.pairs = [
                    (one, mine[id(one)] if id(one) in outs else None, one.detach().clone() if id(one) in ins else None)
                    for one in tensors
                ]
                own = tuple(swapped(one, mine) for one in arguments)
                launch.start = lambda: original(group, *own, **{k: swapped(v, mine) for k, v in named.items()})
                if launch.name in MESSAGES:
                    self._message(self._messages.begin, launch, mine[id(tensors[0])])
                elif not launch.whole:
                    launch.work = launch.start()
                else:
                    self._open.append(launch)
                if method == "monitored_barrier":  # which returns nothing to wait for
                    self.wait(launch)
                return LateWork(self, launch)

        return noted

    def _grouping(self, original: Any) -> Callable[..., Any]:
        """All ranks make the same groups in the same order, unless only the members of a group meet."""

        def grouped(ranks: Any = None, *arguments: Any, **named: Any) -> Any:
            members = list(range(self._group.size())) if ranks is None else [int(rank) for rank in ranks]
            alone = bool(named.get("use_local_synchronization", arguments[4] if len(arguments) > 4 else False))
            with self._quiet():
                while self._open:
                    self._deliver_next()
                if not alone:
                    self._agree(f"a new_group of ranks {members}")
                self.launches.append(Launch("new_group", 0, members=members, whole=not alone, waited=0))
                return original(ranks, *arguments, **named)

        return grouped

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        if self.stopped:
            raise Stop(self.stopped)
        with torch.no_grad(), _disable_current_modes():
            yield

    def _deliver_next(self) -> None:
        launch = self._open[0]
        self._agree(str(launch))
        self._open.pop(0)
        launch.work = launch.start() if launch.start else None
        if launch.work is not None:
            launch.work.wait()

    def _agree(self, call: str, reason: tuple[int, str] | None = None) -> None:
        """Stop all ranks unless all of them come here with the same call.

        Args:
            reason: why this rank cannot go on: how telling that is, and the sentence.
        """
        own = torch.tensor([zlib.crc32(call.encode())])
        everyone = [torch.empty_like(own) for _ in range(self._size)]
        dist.all_gather(everyone, own, group=self._group)
        if reason is None and all(torch.equal(own, other) for other in everyone):
            return
        answers: list[Any] = [None] * self._size
        dist.all_gather_object(answers, (call, reason), group=self._group)
        if reasons := [reason for _, reason in answers if reason]:
            self.stop(max(reasons, key=lambda reason: reason[0])[1])
        number = sum(one.name not in MESSAGES for one in self.launches) - len(self._open) + 1
        calls = said_alike((rank, call) for rank, (call, _) in enumerate(answers))
        self.stop(
            f"the ranks do not call the same collectives. Number {number} of this step is "
            f"{', and '.join(f'{call} on {ranks}' for call, ranks in calls)}. They would hang, or mix up tensors"
        )


class LateWork:
    """What a learner gets in place of a ``Work``: nothing arrives before somebody waits."""

    def __init__(self, wire: Wire, launch: Launch) -> None:
        self._wire, self._launch = wire, launch

    def wait(self, timeout: Any = None) -> bool:
        self._wire.wait(self._launch)
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self.wait()

    def is_success(self) -> bool:
        return self.wait()

    def _source_rank(self) -> int | None:
        return self._launch.peer

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"call wait() on what a collective returns: its {name} is not there in this check")


def _at(arguments: tuple[Any, ...], place: int | None) -> set[int]:
    return set() if place is None or place >= len(arguments) else {id(one) for one in flat(arguments[place])}
