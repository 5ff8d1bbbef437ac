"""What runs inside one rank: it takes cells and functions from the notebook, runs them, and answers.

The main thread runs the code. A second thread listens to the notebook meanwhile, because the main thread may sit in
a collective that never ends: it says where the main thread is, aborts that collective, forwards output, and ends the
process when the notebook is gone.
"""

from __future__ import annotations

import _thread
import ast
import bdb
import builtins
import contextlib
import os
import pdb
import pickle
import queue
import signal
import socket
import sys
import threading
import traceback
import types
from collections.abc import Callable
from time import monotonic
from typing import Any, NoReturn

from utils.ranks import connections, debugger, groups, locate, newer, provider
from utils.ranks.display import DisplayPublisher, remember_source, traceback_text
from utils.ranks.errors import BadRequest
from utils.ranks.iopub import IOPub, OutStream
from utils.ranks.values import dumps
from utils.ranks.wire import Channel, Listener

_LEAST_RECURSION = 500  # frames that this program's own work needs, and more


def main(fds: list[int]) -> NoReturn:
    """Be a rank. ``fds``: the socket to the notebook, both ends of the pipes for stdout and stderr, the store."""
    control, out_read, out_write, err_read, err_write, store = fds
    for fd in fds:
        os.set_inheritable(fd, False)  # programs that cells start have no business with them
    for pipe, standard in ((out_write, 1), (err_write, 2)):
        os.dup2(pipe, standard)
        os.close(pipe)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    work_in_batches()
    channel = Channel(socket.socket(fileno=control))
    iopub = IOPub(channel, out_read, err_read)
    try:
        config, _ = channel.receive()
        rank = Rank(channel, iopub, config, store)
    except (EOFError, OSError):
        os._exit(1)
    except BaseException as error:
        refused = isinstance(error, BadRequest)
        text = str(error) if refused else traceback.format_exc()
        channel.send({"event": "failed", "refused": refused, "text": text})
        channel.flush()
        os._exit(1)
    rank.serve()


class Rank:
    """One rank: its namespace, its process group, its conversation with the notebook."""

    def __init__(self, channel: Channel, iopub: IOPub, config: dict[str, Any], store_fd: int) -> None:
        os.environ.clear()
        os.environ.update(config["environment"])
        os.chdir(config["folder"])
        sys.path[:] = config["path"]
        sys.argv = [""]
        os.environ["MPLBACKEND"] = f"module://{__package__}.display"

        import torch
        import torch.distributed as dist

        newer.add_names()
        draw_other_numbers()
        rank, size, nodes = config["rank"], config["size"], config["nodes"]
        groups.set_environment(rank, size, nodes, config["port"])
        self.devices: Any = provider.in_rank(config["devices"]) if config["devices"] else None
        if self.devices is None:
            backend, note = groups.choose_backend(config["backend"], size)
            device = groups.take_device(backend, rank, size // nodes)
        else:
            (device, backend), note = provider.take(config["devices"], rank, size, nodes), ""
        if size > 1:
            torch.set_num_threads(1)  # as torchrun does; also makes sums come out the same on every machine
        self.channel, self.iopub = channel, iopub
        self.publisher = DisplayPublisher(iopub)
        self.group = groups.Group(config["store"] or f"/proc/self/fd/{store_fd}", backend, rank, size, device)
        self.group.make(0)
        self._work: queue.SimpleQueue[tuple[dict[str, Any], bytes]] = queue.SimpleQueue()
        self._running = False
        self._interrupted = False
        self._cell: int | None = None
        self._failed: types.TracebackType | None = None  # where the last cell failed, for ``%ranks debug``
        self._main_thread = threading.get_ident()

        module = types.ModuleType("__main__")
        sys.modules["__main__"] = module
        self.namespace = module.__dict__
        self.given = dict(
            rank=rank,
            world_size=size,
            local_rank=rank % (size // nodes),
            device=device,
            torch=torch,
            dist=dist,
            display=self.publisher.display,
        )
        self.namespace.update(self.given)
        sys.stdout, sys.stderr = OutStream(iopub, "stdout", 1), OutStream(iopub, "stderr", 2)
        self.questions = debugger.Questions(iopub)
        builtins.input = self.questions.input
        sys.breakpointhook = pdb.set_trace = debugger.breakpoint_here
        connections.watch_sockets()
        os.register_at_fork(after_in_child=in_forked_child)
        signal.signal(signal.SIGINT, self._on_interrupt)
        threading.Thread(target=self._listen, daemon=True, name="notebook").start()
        channel.send({"event": "up", "pid": os.getpid(), "backend": backend, "device": str(device), "note": note})

    # ------------------------------------------------------------------ the main thread
    def serve(self) -> NoReturn:
        """Work until the notebook ends this process."""
        while True:
            with contextlib.suppress(BaseException):  # between two cells, a signal's handler of the reader's may raise
                self._serve(*self._work.get())

    def _serve(self, message: dict[str, Any], blob: bytes) -> None:
        self._cell = message["cell"]
        if message["do"] in ("cell", "call"):
            self._failed = None
        signal.signal(signal.SIGINT, self._on_interrupt)  # a library may have put its own in place
        answer: dict[str, Any] = {"event": "done", "cell": message["cell"], "ok": True}
        result = b""
        self._try(self.iopub.begin, None)
        recorded = self.devices is not None and message["do"] in ("cell", "call")
        if recorded:
            self._try(lambda: self.devices.begin(message["notes"]), None)
        try:
            self._running = True
            try:
                result = self._do(message, blob, answer) or b""
            finally:
                self._running = False
        except BaseException as error:
            self._running = False
            answer |= {"ok": False, "error": self._describe(error), "at": monotonic()}
            if message["do"] in ("cell", "call"):
                self._failed = error.__traceback__
            del error
        if message["do"] == "cell":
            answer["overwritten"] = self._try(lambda: [name for name in self.given if not self._is_own(name)], [])
        if sys.getrecursionlimit() < _LEAST_RECURSION:
            sys.setrecursionlimit(_LEAST_RECURSION)
        if recorded:
            answer["note"] = self._try(self.devices.end, None)
        self._try(self.iopub.finish, None)
        answer["group"] = self._try(self.group.alive, False)
        answer["compiler"] = self._try(lambda: "torch._dynamo" in sys.modules, False)
        self._cell = None
        try:
            self.iopub.send(answer, result)
        except BaseException:  # the reader has replaced something that streams need
            self.channel.send(answer, result)

    def _try(self, function: Callable[[], Any], instead: Any) -> Any:
        """What the function returns; ``instead`` where the reader's code, which it runs into, raises or never ends."""
        try:
            self._running = True  # the notebook's interrupt ends it
            try:
                return function()
            finally:
                self._running = False
        except BaseException:
            self._running = False
            return instead

    def _do(self, message: dict[str, Any], blob: bytes, answer: dict[str, Any]) -> bytes | None:
        what = message["do"]
        if what == "cell":
            answer["value"] = self._run_cell(message["source"], message["file"])
        elif what == "call":
            return self._call(message["sources"], blob)
        elif what == "pull":
            return dumps(eval(compile(message["expression"], "<%ranks pull>", "eval"), self.namespace))
        elif what == "recorded":
            return dumps(self.devices.recorded())
        elif what == "push":
            self.namespace[message["name"]] = pickle.loads(blob)
        elif what == "debug" and self._failed is not None:
            debugger.post_mortem(self._failed)
            answer["value"] = "debugged"
        elif what == "remake":
            self.group.remake(message["generation"])
        return None

    def _run_cell(self, source: str, file: str) -> str | None:
        remember_source(file, source)
        self.namespace.update({name: value for name, value in self.given.items() if not self._is_own(name)})
        tree = ast.parse(source, file)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not source.rstrip().endswith(";"):
            last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
        value = None
        try:
            exec(compile(tree, file, "exec"), self.namespace)
            if last is not None:
                value = eval(compile(last, file, "eval"), self.namespace)
        finally:
            debugger.end_tracing()
        text = self.publisher.value(value)
        self.publisher.figures()
        return text

    def _is_own(self, name: str) -> bool:
        """Whether a name of ours means what it should. (A device may be another one, of the reader's choice.)"""
        own = self.given[name]
        value = self.namespace.get(name)
        if name == "device" and issubclass(type(value), type(own) | str):
            with contextlib.suppress(RuntimeError):
                return bool(type(own)(value))
        return value is own or (type(value) is type(own) and bool(value == own))

    def _call(self, sources: dict[str, str], blob: bytes) -> bytes:
        for file, source in sources.items():
            remember_source(file, source)
        function, args, kwargs = pickle.loads(blob)
        if getattr(function, "__module__", None) == "__main__":
            # (A notebook may have a `rank` too, left over from a loop, say: on a rank, it means this rank's number.)
            function.__globals__.update(self.given)
        else:
            for name, value in self.given.items():
                getattr(function, "__globals__", {}).setdefault(name, value)
        try:
            result = function(*args, **kwargs)
        finally:
            debugger.end_tracing()
        self.publisher.figures()
        return dumps(result)

    def _describe(self, error: BaseException) -> dict[str, Any]:
        """What the notebook shows of an exception: its text, and where in the cell it came from."""
        interrupted = issubclass(type(error), KeyboardInterrupt) and self._interrupted
        ename = type(error).__name__
        left = issubclass(type(error), bdb.BdbQuit)  # its traceback leads through the debugger alone
        if issubclass(type(error), SystemExit):
            message = "sys.exit() was called: a rank ends with `%ranks stop`, not from inside"
        elif left:
            message = "left the debugger, which ends the cell"
        else:
            message = self._try(lambda: "".join([str(error)]), "(its text cannot be shown: __str__ raised or hung)")
        whole = "" if left else self._try(lambda: traceback_text(error), None)
        text = f"{ename}: {message} (its traceback cannot be shown)" if whole is None else whole
        return {
            "ename": ename,
            "message": message[:2000],
            "traceback": text if len(text) < 20_000 else text[:6000] + "\n…\n" + text[-6000:],
            "interrupted": interrupted,
            "device_lost": self._try(lambda: groups.device_lost(error), False),
            "place": self._try(lambda: locate.place(locate.frames_of(error)), locate.nowhere()),
        }

    def _on_interrupt(self, _: int, frame: types.FrameType | None) -> None:
        if self._running:
            self._interrupted = True
            if locate.imports_torch(frame):
                threading.Timer(0.05, self._interrupt_again, (self._cell,)).start()
                return
            if not self.iopub.postpone_interrupt():
                raise KeyboardInterrupt

    def _interrupt_again(self, cell: int | None) -> None:
        if self._cell == cell:  # what runs next was not meant
            signal.pthread_kill(self._main_thread, signal.SIGINT)

    # ------------------------------------------------------------------ the listening thread
    def _listen(self) -> None:
        sources: list[Any] = []
        while True:
            if sources != (now := [self.channel, *self.iopub.sources()]):
                sources, listener = now, Listener(now)
            busy = self._cell is not None
            try:
                readable = listener.wait(0.1 if busy else None)
                if self.channel in readable:
                    for message, blob in self.channel.take():
                        self._hear(message, blob)
                if self.channel.eof:
                    raise EOFError
                if readable != [self.channel]:  # else there is no text, and the main thread, woken just now, waits
                    self.iopub.forward()
            except (EOFError, OSError):
                os.killpg(0, signal.SIGKILL)  # the notebook is gone

    def _hear(self, message: dict[str, Any], blob: bytes) -> None:
        what = message["do"]
        if what == "where":
            self.channel.send({"event": "where", "ask": message["ask"], "place": self._where()})
        elif what == "answer":
            self.questions.answers.put(message)
        elif what == "abort":
            if self._running:  # first the interrupt: NCCL, once aborted, may return as if nothing had happened
                _thread.interrupt_main()
            connections.abort_communication(message["pids"])
        elif what == "complete":
            # (In a thread of its own, for the reader's objects are asked for their attributes.)
            threading.Thread(target=self._complete, args=(message["ask"], message["text"]), daemon=True).start()
        else:
            self._interrupted = False
            self._cell = message["cell"]
            self._work.put((message, blob))

    def _complete(self, ask: int, text: str) -> None:
        self.channel.send({"event": "completions", "ask": ask, "matches": matches(text, self.namespace)})

    def _where(self) -> dict[str, Any] | None:
        """Where the main thread is now, and whether it computes; None when it has finished the cell."""
        stays, still = locate.stands_still(self._main_thread)
        if self._cell is None:
            return None
        place = locate.place_of(self._main_thread)
        begun = locate.unfinished_collective() if stays and place["call"] is None else {}
        gpu = stays and locate.gpu_works()
        return place | begun | {"still": still or bool(begun) or gpu, "gpu": gpu}


def work_in_batches() -> None:
    """Let no rank push another off its core the moment a message arrives (Linux).

    With more ranks than cores, that is what makes gloo slow: an all-reduce of 4 kB on four ranks and two cores took
    4.9 ms under the usual policy and 0.9 ms under this one, which was made for work that nobody watches. The notebook
    itself stays as quick as it was: it may still push a rank aside.
    """
    if hasattr(os, "SCHED_BATCH"):
        try:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        except OSError:
            pass  # forbidden here; it is only slower


def draw_other_numbers() -> None:
    """Seed torch's generator, and numpy's global one, anew, as in a process of its own.

    What is forked goes on with its parent's state: without a seed, all ranks would draw the same numbers. (Python
    seeds its own generator after a fork.)
    """
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


def in_forked_child() -> None:
    # A data-loader worker, say: it prints to the rank's pipes and takes signals as any process does.
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def matches(text: str, namespace: dict[str, Any]) -> list[str]:
    """Names and attributes in this rank that begin with ``text``."""
    found: list[str] = []
    try:
        import rlcompleter

        completer = rlcompleter.Completer(namespace)
        while len(found) < 300 and (match := completer.complete(text, len(found))) is not None:
            found.append(match)
    except Exception:
        pass  # a property that raises: no completions
    return [match.rstrip("( ") for match in found]
