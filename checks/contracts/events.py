"""What happens in a rank during a learner's call: processes, connections, files, frames looked at, ready-made answers.

Python tells it to an audit hook, which nobody can take off again.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import pkgutil
import sys
import sysconfig
import threading
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from checks.verdicts import Wrong
from course.outline import ROOT
from course.size import FLOORS, PREFIXES

Event = tuple[str, str]  # its kind and what it was: ("starts", "a process")
_STARTS = {
    "subprocess.Popen": "a process",
    "os.system": "a process",
    "os.fork": "a process",
    "os.forkpty": "a process",
    "os.posix_spawn": "a process",
    "os.exec": "a process",
    "socket.connect": "a connection",
    "socket.bind": "a connection",
}
_LOOKS = ("sys._getframe", "sys._current_frames", "gc.get_objects", "gc.get_referrers", "gc.get_referents", "ctypes.",
          "sys.settrace", "sys.setprofile", "sys.addaudithook")  # fmt: skip
_ATTRIBUTES = ("tb_frame", "gi_frame", "cr_frame", "ag_frame")
_FILES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "shutil.")
_WRITES = os.O_WRONLY | os.O_RDWR
_GIVEN = ("checks.contracts.launches", "simgpu")  # what an answer gets from collectives; the GPUs
_WIRE = "checks.contracts.wire"
_COURSE = [str(ROOT / name) for name in FLOORS]
_LIBRARY = (*{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}, *_COURSE, "<frozen")
# Types of these modules are mere places to keep things in: deques, namespaces, queues, stacks, generators, iterators.
_KEEPERS = ("builtins", "collections", "types", "queue", "_queue", "contextlib", "itertools", "_thread")
_MADE_AT_RUN_TIME = 1 << 9  # of a type's flags: CPython's Py_TPFLAGS_HEAPTYPE
_BUILT_IN = {*sys.builtin_module_names} - {"builtins"}
_NOT_KEPT = (types.ModuleType, types.FrameType, types.TracebackType, types.CodeType, types.BuiltinFunctionType)
_frame = sys._getframe
_heard: list[Event] | None = None
mapped = 0  # bytes that answers have asked the system for by mmap, past Python's own counting
_inside = threading.local()
_others: set[int] = set()  # threads that ran before: what they do is not the answer's doing


def begin() -> None:
    """Once in a rank, before a learner's code runs."""
    if not _others:
        sys.addaudithook(_audit)
    _others.update(set(sys._current_frames()) - {threading.get_ident()} | {0})


@contextlib.contextmanager
def listening() -> Iterator[list[Event]]:
    """What the answer does in the ``with`` block."""
    global _heard
    _heard = heard = []
    # Python would keep what it compiles for the answer in files: they are not the answer's.
    keeps, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield heard
    finally:
        _heard = None
        sys.dont_write_bytecode = keeps


@contextlib.contextmanager
def not_the_answer() -> Iterator[None]:
    """In the ``with`` block the check itself is at work."""
    before, _inside.check = getattr(_inside, "check", False), True
    try:
        yield
    finally:
        _inside.check = before


def is_the_check() -> bool:
    """Whether this thread is in such a block."""
    return getattr(_inside, "check", False)


def _audit(event: str, details: tuple[Any, ...]) -> None:
    if _heard is None or getattr(_inside, "check", False) or threading.get_ident() in _others:
        return
    if event in _STARTS:
        local = event.startswith("socket") and isinstance(details[1], str | bytes)  # as a data loader's workers need it
        _heard.append(("starts", "a local connection" if local else _STARTS[event]))
    elif event == "open":
        name, _, flags = details
        if isinstance(flags, int) and flags & _WRITES and name != os.devnull:
            _heard.append(("writes", str(name)[-60:]))
    elif event.startswith(_FILES) and not (event == "os.mkdir" and is_torchs_folder(str(details[0]))):
        _heard.append(("writes", str(details[0])[-60:]))
    elif event == "import":
        if str(details[0]).startswith(PREFIXES) and not str(details[0]).startswith(_GIVEN):
            _heard.append(("course", str(details[0])))
    elif event == "mmap.__new__":
        global mapped
        mapped += details[1] if details[0] == -1 else 0  # (of a file: it is there already)
    elif event.startswith(_LOOKS):
        if _asked_by_the_answer():
            _heard.append(("looks", event))
    elif event == "object.__getattr__" and details[1] in _ATTRIBUTES and _asked_by_the_answer():
        _heard.append(("looks", details[1]))


def is_torchs_folder(path: str) -> bool:
    """The empty folder that torch makes for its compiler, when an answer uses torch.utils.checkpoint, say."""
    return os.path.basename(path).startswith("torchinductor_")


def _asked_by_the_answer() -> bool:
    """Libraries look at frames all the time; it counts when a learner's line does, by itself or through inspect."""
    _inside.check = True
    try:
        frame: Any = _frame(2)
        name = ""
        while frame and frame.f_code.co_filename.endswith(("inspect.py", "traceback.py")):
            name, frame = frame.f_code.co_name, frame.f_back
        if name == "format_stack":  # mere text, as autograd asks for it while it looks for anomalies
            return False
        return frame is not None and not frame.f_code.co_filename.startswith(_LIBRARY)
    finally:
        _inside.check = False


@contextlib.contextmanager
def refusing(names: tuple[str, ...], heard: list[Event]) -> Iterator[None]:
    """In the ``with`` block, ready-made answers do not work, and it is noted that they were asked."""
    kept = []
    for name in names:
        owner, last = pkgutil.resolve_name(name.rpartition(".")[0]), name.rpartition(".")[2]
        original = vars(owner)[last]
        code = getattr(original, "__code__", None)
        kept.append((owner, last, original, code))
        refusal = _refusal(name.removesuffix(".__init__"), heard)
        setattr(owner, last, refusal)
        if code is not None and not code.co_freevars:  # so also for who has imported it before, by its name
            original.__code__ = _ASK.__code__.replace(co_name=original.__name__)
            _refusals[original.__name__] = refusal
    try:
        yield
    finally:
        for owner, last, original, code in kept:
            setattr(owner, last, original)
            if code is not None:
                original.__code__ = code


def _ASK(*_: Any, **__: Any) -> Any:
    import sys  # (it runs with the names of another module)

    me = sys._getframe().f_code.co_name
    return sys.modules["checks.contracts.events"]._refusals[me]()


_refusals: dict[str, Any] = {}


def _refusal(name: str, heard: list[Event]) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        heard.append(("ready", name))
        raise Wrong(f"{name} does the exercise: write it yourself, that is the point.")

    return refuse


def held_by(*things: Any) -> tuple[int, set[str]]:
    """How many tensors an answer keeps for later, and which modules of the course its functions use."""
    tensors, course, seen, todo = set(), set(), set(), list(things)
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, str | int | float | type(None)):
            continue
        if isinstance(thing, torch.nn.Module) and not _is_the_answers(type(thing)):
            continue
        seen.add(id(thing))
        if isinstance(thing, torch.Tensor | torch.UntypedStorage) or isinstance(getattr(thing, "nbytes", None), int):
            tensors.add(id(thing))  # (or numpy's array)
            continue
        module = thing.__name__ if isinstance(thing, types.ModuleType) else getattr(thing, "__module__", None)
        if isinstance(module, str) and module.startswith(PREFIXES):
            # (What a check has made inside a function of its own is nothing to import: it was given.)
            given = module.startswith(_GIVEN) or "<locals>" in getattr(thing, "__qualname__", "")
            if isinstance(thing, types.ModuleType | types.FunctionType | type) and not given:
                course.add(module)
            if module == _WIRE:  # a work, which holds the tensors that travel
                tensors.add(id(thing))
            continue
        if isinstance(thing, types.FunctionType) and not thing.__code__.co_filename.startswith(_LIBRARY):
            course |= {word for word in _words(thing) if word.startswith(PREFIXES) and word not in _GIVEN}
        todo += parts_of(thing)
    return len(tensors), course


def parts_of(thing: Any) -> list[Any]:
    """What a function, an object or a container of an answer holds, one step down."""
    if isinstance(thing, staticmethod | classmethod):
        return [thing.__func__]
    if isinstance(thing, functools.partial):
        return [thing.func, thing.args, thing.keywords]
    if isinstance(thing, functools._lru_cache_wrapper):
        return [thing.__wrapped__]
    if isinstance(thing, types.MethodType):
        return [thing.__func__, thing.__self__]
    if isinstance(thing, types.FunctionType):
        if thing.__code__.co_filename.startswith(_LIBRARY):
            return []
        used = _words(thing)
        parts = [value for name, value in thing.__globals__.items() if name in used]
        for cell in thing.__closure__ or ():
            with contextlib.suppress(ValueError):
                parts.append(cell.cell_contents)
        return [*parts, vars(thing), thing.__defaults__, thing.__kwdefaults__, getattr(thing, "__wrapped__", None)]
    if isinstance(thing, Mapping):
        return [*thing.keys(), *thing.values()]
    if isinstance(thing, list | tuple | set | frozenset):
        return list(thing)
    if isinstance(thing, type):
        held = [value for name, value in vars(thing).items() if name != "__doc__"]
        return held if _is_the_answers(thing) else []
    if _is_the_answers(type(thing)):
        return [type(thing), *gc.get_referents(thing)]
    return gc.get_referents(thing) if type(thing).__module__ in _KEEPERS and not isinstance(thing, _NOT_KEPT) else []


def _words(function: types.FunctionType) -> set[str]:
    """The names and texts in a function's code, of modules that it imports too."""
    codes = list(_codes(function.__code__))
    return {one for code in codes for one in (*code.co_names, *code.co_consts) if isinstance(one, str)}


def _is_the_answers(kind: type) -> bool:
    """Whether a learner wrote this class: its functions tell, or its module where it has none."""
    members = [getattr(one, "__func__", one) for one in vars(kind).values()]
    files = [one.__code__.co_filename for one in members if isinstance(one, types.FunctionType)]
    if not files and kind.__flags__ & _MADE_AT_RUN_TIME and kind.__module__ not in _BUILT_IN:
        home = None if kind.__module__ == "__main__" else sys.modules.get(kind.__module__)
        files = [getattr(home, "__file__", None) or ""]
    return any(not file.startswith(_LIBRARY) for file in files)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
