"""Whether a rank can still use its GPU."""

from __future__ import annotations

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
