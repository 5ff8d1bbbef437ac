"""Ending processes that may be gone already."""

from __future__ import annotations

import os
import signal


def kill_group(pid: int) -> None:
    """End every process in this process group at once; nothing happens if there is none left."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
