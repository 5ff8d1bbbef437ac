"""The process that ends spawned ranks when the notebook is gone (for forked ranks, the zygote does this).

Ranks notice that by themselves too, but not while C code holds their interpreter.
"""

from __future__ import annotations

import os
import signal
import socket
from typing import NoReturn

from utils.ranks.lifetimes import kill_group
from utils.ranks.wire import Channel


def main(channel_fd: int) -> NoReturn:
    """Keep a list of process groups; end them all when the notebook's side of the channel closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=channel_fd))
    groups: set[int] = set()
    try:
        while True:
            message, _ = channel.receive()
            if message["do"] == "guard":
                groups.add(message["pid"])
            else:
                groups.discard(message["pid"])
    except (EOFError, OSError):
        for group in groups:
            kill_group(group)
    os._exit(0)
