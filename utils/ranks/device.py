"""Whether a rank can still use its GPU, and whether that works."""

from __future__ import annotations

import os

import torch


def device_lost(error: BaseException) -> bool:
    """Whether an exception says that CUDA has failed for as long as the process lives.

    CUDA's errors come late and stay: after an illegal address or a failed assertion in a kernel, every further call
    fails. Running out of memory is none of them, and after a few others (a wrong argument, say) CUDA works on.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return False
    if not isinstance(error, torch.AcceleratorError) and "CUDA error" not in str(error):
        return False
    if not torch.cuda.is_initialized():
        return True
    try:
        torch.cuda.current_stream().query()  # asks for the state of the context, and waits for nothing
    except RuntimeError:
        return True
    return False


def gpu_works() -> bool:
    """Whether this rank's GPU has not done yet what its default stream was given; asks, and waits for nothing.

    NCCL's collectives have streams of their own, of which the flight recorder knows.
    """
    try:
        return torch.cuda.is_initialized() and not torch.cuda.default_stream(int(os.environ["LOCAL_RANK"])).query()
    except Exception:
        return False  # an aid only: CUDA may have failed for good
