"""Waiting for the ranks: their answers and output, and what happens when they fail, hang, die or are interrupted.

A cell that has to be stopped is stopped in steps: ask every busy rank where it is; cut its connections, which frees
it from a collective; interrupt it; and only then kill it.
"""

from __future__ import annotations

import signal
import time
from typing import Any

from utils.ranks.failures import Outcome, meanwhile
from utils.ranks.lifetimes import send_signal
from utils.ranks.output import Transcript, View
from utils.ranks.processes import InterruptFlag, RankHandle
from utils.ranks.wire import Listener

FAILURE_GRACE = 0.5  # seconds that the others have to end by themselves after one rank failed
ANSWER_GRACE = 1.0  # … to say where they are
FREE_GRACE = 0.4  # … to come back once they are interrupted, and again once they have no connections
STOP_GRACE = 6.0  # … to come back at all, before they are killed
TICK = 0.2

NOBODY = (
    "input() and breakpoint() ask the reader, and here nobody can be asked: the cell runs in the background, or the "
    "notebook without a reader. Give values with `%ranks push NAME`; after a failure, `%ranks debug N` looks back."
)


class Gathering:
    """Collects the answers of some ranks to one command.

    After :meth:`run`: ``outcomes`` has one entry per rank of the world, ``stopped_by`` is None, "failure",
    "time-out" or "interrupt".
    """

    def __init__(
        self,
        handles: list[RankHandle],
        busy: list[int],
        number: int,
        timeout: float | None,
        transcript: Transcript,
        flag: InterruptFlag,
        view: View | None = None,
    ) -> None:
        self._handles = handles
        self._pending = set(busy)
        self._number = number
        self._deadline = time.monotonic() + timeout if timeout else None
        self._transcript = transcript
        self._flag = flag
        self._view = view or View()
        self._handle_of: dict[Any, RankHandle] = {handle.channel: handle for handle in handles}
        starter = handles[0].starter.channel()
        sources = [*self._handle_of, *([starter] if starter is not None else []), flag]
        self._listener = Listener(source for source in sources if source.fileno() >= 0)
        self._looked_at = time.monotonic()  # whether ranks are alive
        self._places: dict[int, dict[str, Any] | None] = {}
        self._times_asked = 0  # where they are
        self._questions: dict[int, dict[str, Any]] = {}  # of ranks to the reader
        self._answered = -1  # the rank whose question was the last
        self._stopped: set[int] = set()
        self.stopped_by: str | None = None
        self.groups_alive: dict[int, bool] = {}
        self.outcomes = [Outcome(handle.rank, "absent") for handle in handles]

    def run(self) -> list[Outcome]:
        """Wait until every rank has answered or is gone; never longer than the time-out and the graces."""
        reason = self._wait_for_answers()
        if reason is not None:
            self.stopped_by = reason
            self._stop(reason)
        return self.outcomes

    # ------------------------------------------------------------------ steps
    def _wait_for_answers(self) -> str | None:
        failed_at = None
        while self._pending:
            self._listen(TICK)
            if not self._pending:
                break  # also when the time is over: they were quick enough
            now = time.monotonic()
            if self._flag.count:
                return "interrupt"
            if self._questions:
                self._ask_reader()
                stood = time.monotonic() - now
                self._deadline = self._deadline and self._deadline + stood
                failed_at = failed_at and time.monotonic()  # (whoever is asked in the debugger has its time, too)
                continue
            if self._deadline is not None and now > self._deadline:
                return "time-out"
            if failed_at is None and any(o.state in ("raised", "killed") for o in self.outcomes):
                failed_at = now
            if failed_at is not None and now > failed_at + FAILURE_GRACE:
                return "failure"
        return None

    def _stop(self, reason: str) -> None:
        self._questions.clear()
        self._ask_where(set(self._pending))
        self._stopped = set(self._pending)  # whoever has ended meanwhile did so by itself
        if reason == "failure":  # the others wait for the one that failed: interrupted and aborted, they end
            self._abort()
            self._listen_until(FREE_GRACE, lambda: not self._pending)
        struck = self._flag.count
        end = time.monotonic() + STOP_GRACE
        # Interrupt first, cut later: gloo (torch 2.13) can wait for ever in a send that is cut in full flight. And more
        # than once: between two collectives there is nothing to cut, and libraries swallow interrupts.
        while self._pending and time.monotonic() < end and self._flag.count == struck:
            for rank in self._pending:
                send_signal(self._handles[rank].pid, signal.SIGINT)
            self._listen_until(FREE_GRACE, lambda: not self._pending or self._flag.count > struck)
            self._abort()
            self._listen_until(FREE_GRACE, lambda: not self._pending or self._flag.count > struck)
        for rank in self._pending:
            send_signal(self._handles[rank].pid, signal.SIGKILL)
        self._listen_until(STOP_GRACE, lambda: not self._pending)
        for rank in list(self._pending):  # cannot be killed (stuck in the kernel): give it up
            self._record(rank, Outcome(rank, "killed", time.monotonic(), code=-signal.SIGKILL))

    def _ask_where(self, ranks: set[int]) -> None:
        """Let these ranks say where they are; wait a moment for those that do not have a question themselves."""
        self._places.clear()
        self._times_asked += 1
        for rank in ranks:
            self._tell(rank, {"do": "where", "ask": [self._number, self._times_asked]})
        known = self._places.keys()
        self._listen_until(ANSWER_GRACE, lambda: ranks & self._pending <= known | self._questions.keys())

    def _ask_reader(self) -> None:
        """Put a rank's question to the reader. Ranks with questions take turns, in their order."""
        self._ask_where(self._pending - self._questions.keys() if self._view.can_ask else set())
        rank = min(self._questions, key=lambda rank: (rank <= self._answered, rank))
        question = self._questions.pop(rank)
        self._answered = rank
        now = [
            Outcome(rank, "stopped", place=self._places.get(rank)) if rank in self._pending else self.outcomes[rank]
            for rank in range(len(self._handles))
        ]
        others = meanwhile(now, rank, set(self._questions))
        answer: dict[str, Any] = {}
        try:
            with self._flag.raising():
                answer = {"text": self._view.ask(rank, question["prompt"], others, self._transcript)}
        except KeyboardInterrupt:
            self._flag.count = self._flag.count or 1
        except EOFError:
            pass  # no text
        except Exception:
            answer = {"refused": NOBODY}
        self._tell(rank, {"do": "answer", "number": question["number"], **answer})

    def _abort(self) -> None:
        for rank in self._pending:
            self._tell(rank, {"do": "abort", "pids": [handle.pid for handle in self._handles]})

    def _listen_until(self, seconds: float, done: Any) -> None:
        end = time.monotonic() + seconds
        while not done() and time.monotonic() < end:
            self._listen(min(TICK, max(0.0, end - time.monotonic())))

    # ------------------------------------------------------------------ messages
    def _listen(self, seconds: float) -> None:
        """Wait for news up to so long, and take all that there is."""
        readable = self._listener.wait(seconds)
        self._flag.clear()
        news = False
        for source in readable:
            if handle := self._handle_of.get(source):
                for message, blob in handle.channel.take():
                    self._on_message(handle, message, blob)
                news |= handle.channel.eof
            else:  # the process that forks ranks may tell of one that has ended
                news |= source is not self._flag
        if news or time.monotonic() > self._looked_at + TICK:
            self._looked_at = time.monotonic()
            for rank in list(self._pending):
                self._check_alive(self._handles[rank])
        self._view.update(self._transcript)

    def _on_message(self, handle: RankHandle, message: dict[str, Any], blob: bytes) -> None:
        event, rank = message["event"], handle.rank
        mine = self._transcript.by_rank.get(rank)
        if event == "output" and mine is not None:
            for stream, text in message["parts"]:
                mine.text(stream, text)
        elif event == "display" and mine is not None:
            mine.show(message["data"], message["metadata"], message["display_id"], message["update"])
        elif event == "clear" and mine is not None:
            mine.clear()
        elif event == "ask" and rank in self._pending:
            self._questions[rank] = message
        elif event == "where" and message["ask"] == [self._number, self._times_asked]:
            self._places[rank] = message["place"]
        elif event == "done" and message["cell"] == self._number and rank in self._pending:
            self.groups_alive[rank] = message["group"]
            handle.note = message.get("note", handle.note)
            self._transcript.overwritten[rank] = tuple(message.get("overwritten", ()))
            if message["compiler"]:
                handle.starter.preload("torch._dynamo")
            if message["ok"]:
                outcome = Outcome(rank, "finished", value=message.get("value"), blob=blob)
            else:
                state = "stopped" if rank in self._stopped else "raised"
                outcome = Outcome(rank, state, message["at"], error=message["error"])
                outcome.place = self._places.get(rank) or message["error"]["place"]
            self._record(rank, outcome)

    def _check_alive(self, handle: RankHandle) -> None:
        code = handle.exit_code()
        if code is None:
            return
        for message, blob in handle.channel.take():  # its last messages
            self._on_message(handle, message, blob)
        if handle.rank in self._pending:
            words = handle.last_words()
            if words and handle.rank in self._transcript.by_rank:
                self._transcript.by_rank[handle.rank].text("stderr", words)
            outcome = Outcome(handle.rank, "killed", time.monotonic(), code=code, last_words=words)
            outcome.place = self._places.get(handle.rank)
            self._record(handle.rank, outcome)

    def _record(self, rank: int, outcome: Outcome) -> None:
        self._pending.discard(rank)
        self._questions.pop(rank, None)
        self.outcomes[rank] = outcome

    def _tell(self, rank: int, message: dict[str, Any]) -> None:
        try:
            self._handles[rank].channel.send(message)
        except OSError:
            pass  # it is gone; its exit is noticed by _check_alive
