"""The text that a rank prints, on its way to the notebook: what ``sys.stdout`` and ``sys.stderr`` are in a rank.

Text that Python prints and text that comes from below it (C++, a child process) keep their order: what waits in
the pipe of file descriptors 1 and 2 is forwarded before the next printed text is added.
"""

from __future__ import annotations

import codecs
import ctypes
import io
import os
import selectors
import threading
from time import monotonic
from typing import Any

from utils.ranks.wire import Channel, Wakeup

_SEND_AT_BYTES = 1 << 16
_SEND_AFTER_SECONDS = 0.05
_MOST_UNSENT_BYTES = 4 << 20  # beyond these, whoever prints waits


class IOPub:
    """Collects a rank's output in order and sends it to the notebook in batches.

    Nothing here waits for the notebook, but for this: who prints faster than the notebook reads waits in ``write``.
    """

    def __init__(self, channel: Channel, stdout_pipe: int, stderr_pipe: int) -> None:
        self.wakeup = Wakeup()  # of the thread that sends what does not leave at once
        self._channel = channel
        self._pipes = {stdout_pipe: "stdout", stderr_pipe: "stderr"}
        self._selector = selectors.PollSelector()
        for pipe in self._pipes:
            os.set_blocking(pipe, False)
            self._selector.register(pipe, selectors.EVENT_READ)
        # A letter's bytes may come in two pieces.
        self._decoders = {pipe: codecs.getincrementaldecoder("utf-8")("replace") for pipe in self._pipes}
        self._lock = threading.RLock()
        self._parts: list[tuple[str, list[str]]] = []
        self._size = 0
        self._sent_at = 0.0
        self._room = threading.Event()
        self._libc = ctypes.CDLL(None)
        self._main_thread = threading.get_ident()
        self._sending = False
        self._interrupted = False

    @property
    def full(self) -> bool:
        """Whether the notebook reads more slowly than this rank writes."""
        return self._channel.pending > _MOST_UNSENT_BYTES

    def sources(self) -> list[Any]:
        """What the sending thread waits for."""
        return [self.wakeup] if self.full else [self.wakeup, *self._pipes]

    def write(self, stream: str, text: str) -> None:
        with self._lock:
            self.drain_pipes()
            self._add(stream, text)
            if self._size > _SEND_AT_BYTES or ("\n" in text and monotonic() - self._sent_at > _SEND_AFTER_SECONDS):
                self.flush()
        while self.full:
            self._room.clear()
            self.wakeup.set()
            self._room.wait(0.1)

    def forward(self) -> None:
        """The sending thread's part: what waits in the pipes, and what has waited long enough."""
        self.wakeup.clear()
        if not self.full:
            self.drain_pipes()
            self._room.set()
        self.flush()

    def drain_pipes(self) -> None:
        """Take what C++ or a child process has written to file descriptors 1 and 2."""
        with self._lock:
            for key, _ in self._selector.select(0):  # by far most often there is nothing, and each print asks
                pipe = key.fd
                try:
                    data = os.read(pipe, _SEND_AT_BYTES)  # once: a child may write faster than we read
                except BlockingIOError:
                    continue
                except OSError:
                    data = b""
                if data:
                    self._add(self._pipes[pipe], self._decoders[pipe].decode(data))
                else:  # a cell has closed it
                    self._selector.unregister(pipe)
                    del self._pipes[pipe]

    def flush(self, more: bool = False) -> None:
        with self._lock:
            if self._parts:
                parts = [(stream, "".join(texts)) for stream, texts in self._parts]
                self._parts, self._size = [], 0
                self._send({"event": "output", "parts": parts}, more=more)
            self._sent_at = monotonic()

    def begin(self) -> None:
        """A cell begins: what it prints first may wait a moment for what it prints next, or for its end."""
        self._sent_at = monotonic()

    def finish(self) -> None:
        """Everything that the cell has written is collected, C's own buffers included."""
        self._libc.fflush(None)
        self.drain_pipes()

    def send(self, message: dict[str, Any], blob: bytes = b"") -> None:
        """Send a message behind all the text that came before it."""
        with self._lock:
            self.drain_pipes()
            self.flush(more=True)
            self._send(message, blob)

    def postpone_interrupt(self) -> bool:
        """Asked by the handler of SIGINT: half a message must not leave. True if KeyboardInterrupt comes later."""
        self._interrupted = self._sending
        return self._sending

    def _send(self, message: dict[str, Any], blob: bytes = b"", more: bool = False) -> None:
        if threading.get_ident() != self._main_thread:
            self._channel.send(message, blob, more)
        else:
            self._sending = True
            try:
                self._channel.send(message, blob, more)
            finally:
                self._sending = False
            if self._interrupted:
                self._interrupted = False
                raise KeyboardInterrupt
        if self._channel.pending and not more:
            self.wakeup.set()

    def _add(self, stream: str, text: str) -> None:
        if not self._parts or self._parts[-1][0] != stream:
            self._parts.append((stream, []))
        self._parts[-1][1].append(text)
        self._size += len(text)


class OutStream(io.TextIOBase):
    """sys.stdout or sys.stderr of a rank. In a process that the rank forks, plain writing to the pipe."""

    encoding = "utf-8"

    def __init__(self, iopub: IOPub, name: str, fd: int) -> None:
        self._iopub, self._name, self._fd, self._owner = iopub, name, fd, os.getpid()

    def write(self, text: str) -> int:
        if os.getpid() == self._owner:
            self._iopub.write(self._name, text)
        else:
            os.write(self._fd, text.encode())
        return len(text)

    def flush(self) -> None:
        if os.getpid() == self._owner:
            self._iopub.flush()

    def fileno(self) -> int:
        return self._fd

    def writable(self) -> bool:
        return True
