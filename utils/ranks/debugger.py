"""``input()`` and ``breakpoint()`` on a rank: the notebook puts the question to the reader and sends the answer."""

from __future__ import annotations

import bdb
import itertools
import os
import pdb
import queue
import sys
import threading
from types import FrameType, TracebackType
from typing import Any

from utils.ranks import locate
from utils.ranks.iopub import IOPub


class Questions:
    """What this rank asks the reader. ``answers`` is filled by the thread that listens to the notebook."""

    def __init__(self, iopub: IOPub) -> None:
        self.answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._iopub = iopub
        self._numbers = itertools.count(1)
        self._asker = os.getpid(), threading.get_ident()

    def input(self, prompt: object = "", /) -> str:
        """Stands in for ``input`` in a rank.

        Raises:
            EOFError: the reader has nothing to say.
            RuntimeError: nobody can be asked; the text says what to do instead.
        """
        if (os.getpid(), threading.get_ident()) != self._asker:
            raise RuntimeError("On ranks, input() and breakpoint() work in the cell's own process and thread only.")
        number = next(self._numbers)
        self._iopub.send({"event": "ask", "number": number, "prompt": str(prompt)})
        while (answer := self.answers.get())["number"] != number:
            pass  # to a question that something has cut short
        if "refused" in answer:
            raise RuntimeError(answer["refused"])
        if "text" not in answer:
            raise EOFError
        return str(answer["text"])


class Debugger(pdb.Pdb):
    """pdb as a reader of a cell wants it: its frames are theirs, and an interrupt ends the cell, not a line of pdb."""

    def __init__(self) -> None:
        super().__init__(completekey=None, skip=[f"{__package__}.*"], nosigint=True, readrc=False)  # type: ignore[arg-type]

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        """The stack from the reader's first frame on. After a failure, at the reader's last: not inside of torch."""
        stack, at = super().get_stack(f, t)
        own = [index for index, (frame, _) in enumerate(stack) if locate.is_readers(frame.f_code.co_filename)]
        if not own:
            return stack, at
        return stack[own[0] :], (own[-1] if f is None else at) - own[0]

    def _cmdloop(self) -> None:
        self.cmdloop()


def breakpoint_here(*_: Any, **__: Any) -> None:
    """Stands in for ``breakpoint`` and ``pdb.set_trace`` in a rank."""
    Debugger().set_trace(sys._getframe(1))


def post_mortem(trace: TracebackType) -> None:
    """Open the debugger where an exception came from."""
    debugger = Debugger()
    debugger.reset()
    debugger.interaction(None, trace)


def end_tracing() -> None:
    """The cell is done: what follows is no business of a debugger that still goes step by step."""
    if isinstance(getattr(sys.gettrace(), "__self__", None), bdb.Bdb):
        sys.settrace(None)
