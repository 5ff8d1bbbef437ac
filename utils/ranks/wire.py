"""Messages between the notebook and its ranks: a JSON object and, where needed, raw bytes behind it.

Each message is a header of two lengths, the JSON text, and the bytes (a pickled value, say). The sockets are
socket pairs that only parent and child hold, so nobody else can connect; file descriptors travel beside a message.
"""

from __future__ import annotations

import array
import json
import os
import selectors
import socket
import struct
import threading
import weakref
from collections.abc import Iterable
from typing import Any

_HEADER = struct.Struct("!IQ")
Message = dict[str, Any]

_open_channels: weakref.WeakSet[Channel] = weakref.WeakSet()


class Channel:
    """One end of a socket pair that carries messages. Sending is safe from several threads."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._lock = threading.Lock()
        self._buffer = bytearray()
        self.eof = False
        _open_channels.add(self)

    def fileno(self) -> int:
        return self.sock.fileno()

    def close(self) -> None:
        self.sock.close()

    def send(self, message: Message, blob: bytes = b"", fds: tuple[int, ...] = ()) -> None:
        """Send one message, whole. Raises OSError when the other side is gone."""
        text = json.dumps(message).encode()
        header = _HEADER.pack(len(text), len(blob))
        with self._lock:
            if fds:
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
                self.sock.sendmsg([header], [rights])
            else:
                self.sock.sendall(header)
            self.sock.sendall(text)
            if blob:
                self.sock.sendall(blob)

    def receive(self) -> tuple[Message, bytes]:
        """Wait for one message. Raises EOFError when the other side is gone."""
        text_length, blob_length = _HEADER.unpack(self._exactly(_HEADER.size))
        message = json.loads(self._exactly(text_length))
        return message, self._exactly(blob_length)

    def receive_with_fds(self, most: int = 8) -> tuple[Message, list[int]]:
        """Wait for one message that may bring file descriptors along."""
        data, ancillary, _, _ = self.sock.recvmsg(_HEADER.size, socket.CMSG_SPACE(most * 4))
        if not data:
            raise EOFError
        fds = array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
        data += self._exactly(_HEADER.size - len(data))
        text_length, _ = _HEADER.unpack(data)
        return json.loads(self._exactly(text_length)), list(fds)

    def take(self) -> list[tuple[Message, bytes]]:
        """The messages that are here already, without waiting; ``eof`` is set when the other side is gone.

        Bytes of an unfinished message are kept, so that a slow or stopped sender never blocks the notebook.
        """
        try:
            while chunk := self.sock.recv(1 << 20, socket.MSG_DONTWAIT):
                self._buffer += chunk
                if len(chunk) < 1 << 16:
                    break
            else:
                self.eof = True
        except BlockingIOError:
            pass
        except OSError:
            self.eof = True
        messages = []
        while len(self._buffer) >= _HEADER.size:
            text_length, blob_length = _HEADER.unpack_from(self._buffer)
            blob_start = _HEADER.size + text_length
            end = blob_start + blob_length
            if len(self._buffer) < end:
                break
            try:
                message = json.loads(self._buffer[_HEADER.size : blob_start])
            except ValueError:  # a sender gone mad: nothing that follows can be trusted
                self.eof = True
                self._buffer.clear()
                break
            messages.append((message, bytes(self._buffer[blob_start:end])))
            del self._buffer[:end]
        return messages

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            chunk = self.sock.recv(min(count, 1 << 20))
            if not chunk:
                raise EOFError
            parts.append(chunk)
            count -= len(chunk)
        return b"".join(parts)


def wait_for(sources: Iterable[Any], seconds: float | None = None) -> list[Any]:
    """Those of these channels, flags and file descriptors that can be read; waits for one up to so long."""
    with selectors.PollSelector() as selector:  # (it has no file descriptor of its own, which a child could inherit)
        for source in sources:
            selector.register(source, selectors.EVENT_READ)
        return [key.fileobj for key, _ in selector.select(seconds)]


def pair() -> tuple[Channel, socket.socket]:
    """A channel for this process and the socket that its peer gets."""
    mine, theirs = socket.socketpair()
    return Channel(mine), theirs


def _close_in_child() -> None:
    # A child that somebody forks must not hold our sockets open: ranks take end-of-file for "the notebook is gone".
    for channel in list(_open_channels):
        channel.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
