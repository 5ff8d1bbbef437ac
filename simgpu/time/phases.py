"""Which part of a training step runs: forward, backward or the optimizer.

The profile's colours, and the kinds of memory, come from the answer.
"""

from __future__ import annotations

import sys
import threading
from types import CodeType, FrameType

from simgpu._torch import current_graph_task

FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION = "forward", "backward", "optimizer", "communication"

_steps = threading.local()
"""``running``: the optimizers' steps in this thread: the id and the code of the frame of each, the innermost last.

No frame itself, which would keep what it and its callers hold. An id alone may be that of a later frame; with the code
of torch's wrapper around ``step`` it is that of a later step at worst.
"""


def begin_step(frame: FrameType) -> None:
    """An optimizer's step begins, which ends when this frame does."""
    vars(_steps).setdefault("running", []).append((id(frame), frame.f_code))


def in_optimizer() -> bool:
    """Is an optimizer's step running in this thread? (One that has failed is not, though nobody says that it ended.)"""
    running: list[tuple[int, CodeType]] = vars(_steps).get("running", [])
    while running:
        number, code = running[-1]
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if id(frame) == number and frame.f_code is code:
                return True
            frame = frame.f_back
        running.pop()
    return False


def in_backward() -> bool:
    """Does autograd's engine run the code that asks?"""
    return current_graph_task() >= 0


def phase_now() -> str:
    """What the code that asks is part of: "forward", "backward" or "optimizer"."""
    return BACKWARD if in_backward() else OPTIMIZER if in_optimizer() else FORWARD
