"""Imported by the zygote in a test (``preload``): what can go wrong in it, each while a file is there."""

from __future__ import annotations

import os
import time

FOLDER = os.environ.get("ZYGOTE_FAULTS", "")
_fork = os.fork


def _fork_or_not() -> int:
    if os.path.exists(f"{FOLDER}/no room"):
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return _fork()


os.fork = _fork_or_not
while os.path.exists(f"{FOLDER}/busy"):
    time.sleep(0.01)
