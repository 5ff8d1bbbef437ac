"""Who counts the budget. The function that the searches look into lives in the process of the check.

A learner's code, and the trials that it starts with Ray, run in other processes. They hold a ``Training`` only, which
asks through a Unix socket. So each call is in the books, in whichever process it was made, and what a call costs
cannot be changed from there. Only JSON travels: nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import struct
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from utils.checks.verdicts import Wrong

Config = dict[str, Any]
Curve = Callable[[Config, int], float]
"""From a configuration and epochs to a loss: the function to search. It may raise ``MemoryError``."""

OUT_OF_MEMORY = "out of memory"
_SECONDS = 30  # to wait for an answer
_MOST_EPOCHS = 1_000_000  # of one trial


@dataclass
class Call:
    """One call: ``epochs`` more epochs for one trial, which has then had ``total``; None: the trial has crashed."""

    trial: int
    config: Config
    epochs: int
    total: int
    loss: float | None
    pid: int


@dataclass
class Trial:
    """One training from its first epoch on."""

    config: Config
    total: int = 0
    crashed: bool = False


@dataclass
class Books:
    """The books of one search. As a context manager it answers at ``path``.

    Args:
        curve: the function to search.
    """

    curve: Curve
    calls: list[Call] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    path: str = ""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._end = contextlib.ExitStack()

    def __enter__(self) -> Books:
        folder = self._end.enter_context(tempfile.TemporaryDirectory(prefix="books-"))
        self.path = str(Path(folder, "s"))
        books = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                pid = _peer(self.request)
                for line in self.rfile:
                    with contextlib.suppress(OSError):
                        self.wfile.write(json.dumps(books._answer(line, pid)).encode() + b"\n")

        class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads = True
            request_queue_size = 128  # trials may come all at once

        server = self._end.enter_context(Server(self.path, Handler))
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        self._end.callback(server.shutdown)
        return self

    def __exit__(self, *_: object) -> None:
        self._end.close()

    @property
    def epochs(self) -> int:
        """All epochs that were trained."""
        return sum(call.epochs for call in self.calls)

    def _answer(self, line: bytes, pid: int) -> dict[str, Any]:
        try:
            asked = json.loads(line)
            with self._lock:
                return self._train(asked["config"], asked["epochs"], asked["checkpoint"], pid)
        except _Refused as refused:
            self.refused.append(str(refused))
            return {"refused": str(refused)}
        except Exception as error:  # not from a Training
            return {"refused": f"not understood ({type(error).__name__})"}

    def _train(self, config: Any, epochs: Any, checkpoint: Any, pid: int) -> dict[str, Any]:
        _require(config, epochs)
        if checkpoint is None:
            self.trials.append(Trial(config))
            number = len(self.trials) - 1
        else:
            number, total = _checkpoint(checkpoint)
            if number >= len(self.trials):
                raise _Refused("the checkpoint is none that train has returned")
            if self.trials[number].config != config:
                raise _Refused(f"{config} was given the checkpoint of another configuration")
            if self.trials[number].total != total:
                raise _Refused("an old checkpoint was used: epochs after it were trained twice")
        trial = self.trials[number]
        if trial.total + epochs > _MOST_EPOCHS:
            raise _Refused(f"a trial has more than {_MOST_EPOCHS:,} epochs: does the search end?")
        trial.total += epochs
        try:
            loss = self.curve(config, trial.total)
        except MemoryError:
            trial.crashed = True
            self.calls.append(Call(number, config, epochs, trial.total, None, pid))
            return {"crashed": OUT_OF_MEMORY}
        self.calls.append(Call(number, config, epochs, trial.total, loss, pid))
        return {"loss": loss, "checkpoint": f"trial {number} after {trial.total} epochs"}


class _Refused(Exception):
    """A call that makes no sense; its text is for the learner."""


def _require(config: Any, epochs: Any) -> None:
    if not isinstance(config, dict) or set(config) != {"lr", "batch_size"}:
        raise _Refused(f"a configuration is a dict with lr and batch_size, not {str(config)[:80]}")
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in config.values()):
        raise _Refused(f"lr and batch_size are numbers, not {str(config)[:80]}")
    if not isinstance(epochs, int) or isinstance(epochs, bool) or epochs < 1:
        raise _Refused(f"epochs is a whole number of at least 1, not {str(epochs)[:20]}")


def _checkpoint(text: Any) -> tuple[int, int]:
    try:
        _, number, _, total, _ = str(text).split()
        return int(number), int(total)
    except ValueError:
        raise _Refused("the checkpoint is none that train has returned") from None


def _peer(connection: socket.socket) -> int:
    """The process at the other end; 0 where the system does not tell."""
    if sys.platform != "linux":
        return 0
    return struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]


@dataclass(frozen=True)
class Training:
    """``train(config, epochs, checkpoint=None)`` for learners: gives a loss and a checkpoint. Can be pickled."""

    path: str = field(repr=False)

    def __call__(self, config: Config, epochs: int = 1, checkpoint: str | None = None) -> tuple[float, str]:
        """Train a configuration so many epochs more.

        Args:
            config: ``{"lr": …, "batch_size": …}``.
            epochs: how many.
            checkpoint: where to go on; None starts anew.

        Returns:
            The loss after these epochs, nan if the training has diverged; and a checkpoint to go on from.

        Raises:
            RuntimeError: out of memory.
        """
        asked = {"config": _plain(config), "epochs": _number(epochs), "checkpoint": checkpoint}
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_SECONDS)
            connection.connect(self.path)
            connection.sendall(json.dumps(asked, default=repr).encode() + b"\n")
            with connection.makefile("rb") as file:
                answer = json.loads(file.readline())
        if "refused" in answer:
            raise Wrong(answer["refused"])
        if "crashed" in answer:
            raise RuntimeError(answer["crashed"])
        return answer["loss"], answer["checkpoint"]


@dataclass(frozen=True)
class Objective:
    """``objective(config)`` for learners: a whole training, and its loss. Can be pickled."""

    path: str = field(repr=False)

    def __call__(self, config: Config) -> float:
        """The loss of a whole training, nan if it has diverged."""
        return Training(self.path)(config)[0]


def _plain(config: Any) -> Any:
    return {name: _number(value) for name, value in config.items()} if isinstance(config, dict) else config


def _number(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value  # numpy's and torch's numbers
