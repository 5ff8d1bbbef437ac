"""How a training script ends cleanly, whichever backend its process group has."""

from __future__ import annotations

import atexit
import os
import sys
from typing import NoReturn


def leave(code: int = 0) -> NoReturn:
    """End this process at once, after its last words: the last line of a script that ran on ranks.

    With gloo in torch 2.13, a process that has done all its work can still abort at exit ("terminate called without
    an active exception", exit code -6): a thread of gloo lets go of a finished collective while the interpreter is
    shutting down (pytorch issue 190489). torchrun then reports a failure that was none. So: leave the process group,
    run what was registered with ``atexit``, write out what was printed, and end without the interpreter's shutdown.

    Call it only when the work went well. After an exception let Python end as usual: torchrun must see the failure.

    Args:
        code: exit code of the process.
    """
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
