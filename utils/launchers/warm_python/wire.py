"""What is said between the small program in place of ``python`` and the process that forks: JSON lines, no pickles."""

from __future__ import annotations

import json
import socket
from typing import Any


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """One message, as a line."""
    connection.sendall(json.dumps(message).encode() + b"\n")


def receive(connection: socket.socket) -> dict[str, Any] | None:
    """The next message; None: the other side has gone."""
    line = b""
    while not line.endswith(b"\n"):
        try:
            part = connection.recv(1)
        except ConnectionError:
            return None
        if not part:
            return None
        line += part
    found: dict[str, Any] = json.loads(line)
    return found
