"""Messages between the notebook and its ranks: a JSON object and, where needed, raw bytes behind it.

Each message is a header of two lengths, the JSON text, and the bytes (a pickled value, say). The sockets are
socket pairs that only parent and child hold, so nobody else can connect; file descriptors travel beside a message.

No side ever waits for the other to read: what does not leave at once is kept, and leaves while ``wait_for`` waits.
"""

from __future__ import annotations

import array
import itertools
import json
import os
import selectors
import socket
import struct
import threading
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any

_HEADER = struct.Struct("!IQ")
_READ_AT_ONCE = 8 << 20  # bytes: whoever sends without end must not keep the reader from its other work
Message = dict[str, Any]

_open_channels: weakref.WeakSet[Channel] = weakref.WeakSet()


class Channel:
    """One end of a socket pair that carries messages. Sending is safe from several threads.

    Attributes:
        eof: the other side is gone.
        pending: bytes that have not left yet.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.eof = False
        self.pending = 0
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._outgoing: deque[memoryview] = deque()
        self._incoming = bytearray()
        self._unfinished: tuple[Message, bytearray, int] | None = None  # its bytes, and how many have come
        _open_channels.add(self)

    def fileno(self) -> int:
        return self.sock.fileno()

    def close(self) -> None:
        self.sock.close()

    # ------------------------------------------------------------------ sending
    def send(self, message: Message, blob: bytes = b"", more: bool = False) -> None:
        """Send one message without ever waiting: see ``write`` for what does not leave at once.

        Args:
            more: the next message follows at once, and both may leave together.

        Raises:
            OSError: the other side is gone.
        """
        self.send_packed(packed(message, blob), more)

    def send_packed(self, parts: list[memoryview], more: bool = False) -> None:
        """As ``send``, for a message that was packed before: what goes to all ranks is packed once."""
        with self._lock:
            self._outgoing.extend(parts)
            self.pending += sum(part.nbytes for part in parts)
            if not more:
                self._write()

    def write(self) -> None:
        """Let leave what the socket takes now. Raises OSError when the other side is gone."""
        with self._lock:
            self._write()

    def flush(self) -> None:
        """Wait until everything has left. Raises OSError when the other side is gone."""
        while self.pending:
            with selectors.PollSelector() as selector:
                selector.register(self, selectors.EVENT_WRITE)
                selector.select()
            self.write()

    def _write(self) -> None:
        try:
            while self._outgoing:
                sent = self.sock.sendmsg(list(itertools.islice(self._outgoing, 16)), [], socket.MSG_DONTWAIT)
                self.pending -= sent
                while self._outgoing and sent >= self._outgoing[0].nbytes:
                    sent -= self._outgoing.popleft().nbytes
                if sent:
                    self._outgoing[0] = self._outgoing[0][sent:]
        except BlockingIOError:
            pass
        except OSError:
            self._outgoing.clear()
            self.pending = 0
            raise

    def send_with_fds(self, message: Message, fds: tuple[int, ...]) -> None:
        """Send one small message with file descriptors beside it."""
        self.flush()
        text = json.dumps(message).encode()
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
        with self._lock:
            self.sock.sendmsg([_HEADER.pack(len(text), 0)], [rights])
            self.sock.sendall(text)

    # ------------------------------------------------------------------ receiving
    def receive(self) -> tuple[Message, bytes]:
        """Wait for one message. Raises EOFError when the other side is gone."""
        text_length, blob_length = _HEADER.unpack(self._exactly(_HEADER.size))
        message = json.loads(self._exactly(text_length))
        return message, self._exactly(blob_length)

    def receive_with_fds(self, most: int = 8) -> tuple[Message, list[int]]:
        """Wait for one message that may bring file descriptors along; programs that we start do not inherit them."""
        data, ancillary, _, _ = self.sock.recvmsg(_HEADER.size, socket.CMSG_SPACE(most * 4))
        if not data:
            raise EOFError
        fds = array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
        for fd in fds:
            os.set_inheritable(fd, False)
        data += self._exactly(_HEADER.size - len(data))
        text_length, _ = _HEADER.unpack(data)
        return json.loads(self._exactly(text_length)), list(fds)

    def take(self) -> list[tuple[Message, bytes]]:
        """The messages that are here already, without waiting; ``eof`` is set when the other side is gone.

        Bytes of an unfinished message are kept, so that a slow or stopped sender never blocks the reader.
        """
        with self._reading:
            return self._take()

    def _take(self) -> list[tuple[Message, bytes]]:
        messages: list[tuple[Message, bytes]] = []
        left = _READ_AT_ONCE
        try:
            while left > 0 and (count := self._read(messages)):
                left -= count
                if count < 1 << 16:
                    break
            else:
                self.eof = self.eof or left > 0
        except BlockingIOError:
            pass
        except OSError:
            self.eof = True
        except (ValueError, MemoryError, OverflowError):  # a sender gone mad: nothing that follows can be trusted
            self.eof = True
            self._incoming.clear()
        return messages

    def _read(self, messages: list[tuple[Message, bytes]]) -> int:
        """Read once without waiting, add what has come whole to the messages, and return how many bytes came."""
        if self._unfinished is None:
            chunk = self.sock.recv(1 << 20, socket.MSG_DONTWAIT)
            self._incoming += chunk
            self._parse(messages)
            return len(chunk)
        message, blob, come = self._unfinished
        count = self.sock.recv_into(memoryview(blob)[come:], 0, socket.MSG_DONTWAIT)
        self._unfinished = (message, blob, come + count)
        if come + count == len(blob):
            self._unfinished = None
            messages.append((message, blob))  # type: ignore[arg-type]  # (as good as bytes, which would be a copy)
        return count

    def _parse(self, messages: list[tuple[Message, bytes]]) -> None:
        """Take whole messages out of what has come. The rest of a long one will be read straight to its place."""
        while self._unfinished is None and len(self._incoming) >= _HEADER.size:
            text_length, blob_length = _HEADER.unpack_from(self._incoming)
            blob_start = _HEADER.size + text_length
            if len(self._incoming) < blob_start:
                break
            message = json.loads(self._incoming[_HEADER.size : blob_start])
            blob = self._incoming[blob_start : blob_start + blob_length]
            del self._incoming[: blob_start + blob_length]
            if len(blob) == blob_length:
                messages.append((message, bytes(blob)))
            else:
                whole = bytearray(blob_length)
                whole[: len(blob)] = blob
                self._unfinished = (message, whole, len(blob))

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            chunk = self.sock.recv(min(count, 1 << 20))
            if not chunk:
                raise EOFError
            parts.append(chunk)
            count -= len(chunk)
        return b"".join(parts)


def packed(message: Message, blob: bytes = b"") -> list[memoryview]:
    """One message as it goes over the wire."""
    text = json.dumps(message).encode()
    parts = [memoryview(_HEADER.pack(len(text), len(blob)) + text), memoryview(blob)]
    return [part for part in parts if part.nbytes]


class Wakeup:
    """Wakes whoever waits for it and for channels: from another thread, or from a signal's handler."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()
        self._open, self._lock = True, threading.RLock()  # (a signal may strike the thread that holds it)
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)

    def fileno(self) -> int:
        return self._read_end

    def set(self) -> None:
        with self._lock:
            if self._open:
                try:
                    os.write(self._write_end, b"!")
                except BlockingIOError:
                    pass

    def clear(self) -> None:
        try:
            os.read(self._read_end, 512)
        except BlockingIOError:
            pass

    def close(self) -> None:
        """From here on, waking does nothing: the numbers of the pipe's ends may be somebody else's."""
        with self._lock:
            self._open = False
            os.close(self._read_end)
            os.close(self._write_end)


class Listener:
    """Waits for several channels, wake-ups and file descriptors, again and again.

    What channels have not sent yet leaves meanwhile, as fast as the other sides read it.
    """

    def __init__(self, sources: Iterable[Any]) -> None:
        self._selector = selectors.PollSelector()  # (it has no file descriptor, which a child could inherit)
        self._channels: dict[Channel, bool] = {}  # and whether we wait until they can send
        for source in sources:
            self._selector.register(source, selectors.EVENT_READ)
            if isinstance(source, Channel):
                self._channels[source] = False

    def wait(self, seconds: float | None = None) -> list[Any]:
        """Those that can be read; waits for one up to so long. A channel at its end is left out from then on."""
        for channel, writes in list(self._channels.items()):
            if channel.eof or channel.fileno() < 0:
                self._forget(channel)
            elif writes != bool(channel.pending):
                self._channels[channel] = not writes
                events = selectors.EVENT_READ | (0 if writes else selectors.EVENT_WRITE)
                self._selector.modify(channel, events)
        readable = []
        for key, events in self._selector.select(seconds):
            if events & selectors.EVENT_WRITE:
                try:
                    key.fileobj.write()  # type: ignore[union-attr]
                except OSError:
                    key.fileobj.eof = True  # type: ignore[union-attr]
            if events & selectors.EVENT_READ:
                readable.append(key.fileobj)
        return readable

    def _forget(self, channel: Channel) -> None:
        del self._channels[channel]
        self._selector.unregister(channel)


def wait_for(sources: Iterable[Any], seconds: float | None = None) -> list[Any]:
    """Those of these channels, wake-ups and file descriptors that can be read: see ``Listener``."""
    return Listener(sources).wait(seconds)


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
