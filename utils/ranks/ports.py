"""Ports of this machine for programs that are started with a port and take it only later."""

from __future__ import annotations

import contextlib
import random
import socket

#: Not those that the system gives out by itself (from 32768 on, on Linux): a launcher takes its port only after it has
#: imported torch or TensorFlow, and till then the system would give it to whoever asks for any port.
_CHOICE = range(15_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody uses now, all different.

    Raises:
        OSError: there are not so many.
    """
    found: list[int] = []
    # (The system's own randomness: a notebook that has seeded `random` must not notice.)
    for port in random.SystemRandom().sample(_CHOICE, 100 + count):
        if len(found) == count:
            break
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
    if len(found) < count:
        raise OSError(f"too few ports between {_CHOICE.start} and {_CHOICE.stop} are free on this machine")
    return found
