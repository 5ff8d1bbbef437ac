"""Which part of a training step runs: forward, backward or the optimizer.

The profile's colours, and the kinds of memory, come from the answer.
"""

from __future__ import annotations

import torch

FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION = "forward", "backward", "optimizer", "communication"


_in_optimizer = False


def set_in_optimizer(value: bool) -> None:
    """An optimizer's step begins or ends."""
    global _in_optimizer
    _in_optimizer = value


def in_optimizer() -> bool:
    """Is an optimizer's step running?"""
    return _in_optimizer


def in_backward() -> bool:
    """Does autograd's engine run the code that asks?"""
    return torch._C._current_graph_task_id() >= 0


def phase_now() -> str:
    """What the code that asks is part of: "forward", "backward" or "optimizer"."""
    return BACKWARD if in_backward() else OPTIMIZER if _in_optimizer else FORWARD
