"""The process around a learner's call: everything that a function has to leave as it was."""

from __future__ import annotations

import builtins
import contextlib
import decimal
import gc
import logging
import multiprocessing.context
import os
import random
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules import module as every_module

from checks.contracts.events import is_torchs_folder, not_the_answer

_TORCHS_OWN = ("TORCHINDUCTOR_CACHE_DIR",)  # which it sets when its compiler is imported, by an optimizer say
_TORCH = str(Path(torch.__file__).parent)
_TCP_INFO, _SENT_AT = 11, 200  # where Linux tells how many bytes a connection has sent


def surroundings() -> dict[str, Any]:
    """By name, a plain token for each part of this process that outlives a call."""
    return {
        "torch's random numbers": hash(torch.get_rng_state().numpy().tobytes()),
        "the seed of torch's random numbers": torch.initial_seed(),
        "numpy's random numbers": _numpy(),
        "Python's random numbers": hash(random.getstate()),
        "grad mode": f"{torch.is_grad_enabled()} {torch.is_inference_mode_enabled()} {torch.is_anomaly_enabled()} "
        f"{torch._C._is_multithreading_enabled()}",
        "torch's defaults": f"{torch.get_default_dtype()} {torch.get_default_device()} {torch.get_num_threads()} "
        f"{torch.are_deterministic_algorithms_enabled()} {torch.is_autocast_enabled('cpu')} "
        f"{torch.get_float32_matmul_precision()} {torch.get_autocast_dtype('cpu')} {torch.is_autocast_cache_enabled()} "
        f"{torch.backends.mkldnn.enabled} {torch.is_warn_always_enabled()} {torch._tensor_str.PRINT_OPTS} "
        f"{torch.backends.cudnn.benchmark} {torch.backends.cudnn.deterministic} {torch.backends.cudnn.enabled}",
        "torch's smallest numbers": torch.tensor(1e-40).mul(1).item(),
        "the hooks on saved tensors": str(torch._C._autograd._top_saved_tensors_default_hooks(True)),
        "the hooks on all modules": str([list(v) for k, v in vars(every_module).items() if _is_hooks(k, v)]),
        "the working folder": os.getcwd(),
        "the environment variables": hash(frozenset(one for one in os.environ.items() if one[0] not in _TORCHS_OWN)),
        "the number of threads": tuple(thread.native_id for thread in threading.enumerate()),
        "the child processes": [numbers for numbers in children() if numbers],
        "the files in its folder": _files(tempfile.tempdir),
        "the signals": str([signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]),
        "the process's alarm": signal.getitimer(signal.ITIMER_REAL)[0] > 0,
        "Python's settings": f"{sys.getrecursionlimit()} {sys.getswitchinterval()} {gc.isenabled()} {len(sys.path)} "
        f"{sys.gettrace()} {sys.getprofile()} {gc.get_threshold()} {socket.getdefaulttimeout()} {len(gc.callbacks)}",
        "the numbers of decimal": f"{decimal.getcontext().prec} {decimal.getcontext().rounding}",
        "how processes start and share tensors": f"{_start_method()} {torch.multiprocessing.get_sharing_strategy()}",
        "which warnings are hidden": _silenced(),
        "where Python writes": hash((id(sys.stdout), id(sys.stderr), id(sys.excepthook), id(threading.excepthook))),
        "which messages are logged": f"{logging.root.manager.disable} {logging.root.level}",
        "the settings of the process": f"{_umask()} {os.nice(0)} {_cores()}",
        "the process groups": sorted(map(str, dist.distributed_c10d._world.pg_names.values())),
    } | _simulated_gpus()


def _simulated_gpus() -> dict[str, Any]:
    """Where there are some: which GPU and stream a program works with, and their random numbers."""
    module = sys.modules.get("simgpu.cluster")
    if module is None or not module.exists():
        return {}
    from simgpu.torch_module import state_of

    cluster = module.current()
    states = [state_of(gpu).numpy().tobytes() for gpu in cluster.gpus]
    return {
        "the simulated GPUs": id(cluster),
        "the current GPU": f"simgpu:{cluster.current_index()}",
        "the current streams": str([id(cluster.current_stream(gpu.index)) for gpu in cluster.gpus]),
        "the GPUs' random numbers": hash(tuple(states)),
    }


def settled(before: dict[str, Any]) -> dict[str, Any]:
    """``surroundings`` after a call: threads and processes that are just about to end get a second for it."""
    end = time.monotonic() + 1
    while True:
        after = surroundings()
        names = ("the number of threads", "the child processes")
        if not any(changed({name: before[name] for name in names}, after)) or time.monotonic() > end:
            return after
        time.sleep(0.01)


@contextlib.contextmanager
def own_folder(inside: str) -> Iterator[None]:
    """An empty working folder, which is the temporary one too: files that C++ writes show as well."""
    here, temporary, variable = os.getcwd(), tempfile.tempdir, os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(dir=inside) as folder:
        os.chdir(folder)
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        try:
            yield
        finally:
            os.chdir(here)
            tempfile.tempdir = temporary
            os.environ.pop("TMPDIR")
            if variable is not None:
                os.environ["TMPDIR"] = variable


def functions() -> dict[str, frozenset[tuple[str, int]]]:
    """What the judging relies on: a function that an answer has replaced shows, whoever owns it."""
    owners: list[Any] = [nn.Module, torch.Tensor, nn.Parameter, dist.ProcessGroup, torch.autograd.Function, dist.Work]
    owners += [dist, dist.distributed_c10d, builtins, torch]
    names = [name for name in sys.modules if name.startswith("checks")]
    for name in names:
        owners.append(sys.modules[name])
        owners += [v for v in list(vars(sys.modules[name]).values()) if isinstance(v, type) and v.__module__ == name]
    return {f"the functions of {_name(owner)}": _code(owner) for owner in owners}


def _name(owner: Any) -> str:
    """Two checks may have classes of the same name: then the module tells them apart."""
    checks_own = isinstance(owner, type) and owner.__module__.startswith("checks")
    return f"{owner.__module__}.{owner.__name__}" if checks_own else owner.__name__


def _code(owner: Any) -> frozenset[tuple[str, int]]:
    inherited = reversed(owner.__mro__) if isinstance(owner, type) else [owner]
    found = {name: value for one in inherited for name, value in list(vars(one).items())}
    found.pop("Storage", None)  # torch's default type decides which class that is; it is looked at by itself
    return frozenset((name, _whose(value)) for name, value in found.items() if callable(value))


def _whose(function: Any) -> int:
    """Torch exchanges some of its functions by itself, when its compiler is imported: its own ones are all the same."""
    code = getattr(function, "__code__", None)
    if isinstance(code, types.CodeType):
        return 0 if code.co_filename.startswith(_TORCH) else id(code)
    return id(function)


def changed(before: dict[str, Any], after: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Names of what is other than before, with both tokens in short. Libraries may load more functions."""
    for name, was in before.items():
        now = after.get(name, was)
        if isinstance(was, frozenset):
            if lost := sorted(key for key, _ in was - now if (key, 0) not in now):
                yield name, "", f"{', '.join(lost[:3])} replaced"
        elif isinstance(was, tuple):  # of threads; one that has ended meanwhile is no change
            if more := set(now) - set(was):
                yield name, f"{len(was)}", f"{len(more)} more"
        elif was != now:
            yield name, *map(_short, _differing(was, now))


def _differing(was: Any, now: Any) -> tuple[Any, Any]:
    """Of several settings in one text, those that have changed."""
    if isinstance(was, str) and len(was.split()) == len(now.split()):
        other = [pair for pair in zip(was.split(), now.split(), strict=True) if pair[0] != pair[1]]
        was, now = (" ".join(pair[number] for pair in other) for number in range(2))
    return was, now


def _short(token: Any) -> str:
    return "" if isinstance(token, int) and abs(token) > 2**20 else str(token)[:80]


def _start_method() -> str:
    """Who asks by ``get_start_method`` decides it, too."""
    usual = multiprocessing.context._default_context
    return (usual._actual_context or usual._default_context)._name


def _umask() -> str:
    """As Linux tells it: who asks by setting another one changes the files that threads make meanwhile."""
    lines = _read(Path("/proc/self/status")).splitlines()
    return next((line.split()[1] for line in lines if line.startswith("Umask:")), "")


def _silenced() -> list[tuple[str, str]]:
    """Which warnings are hidden everywhere. (A library that is loaded hides some of its own, by their text.)"""
    return [(one[0], one[2].__name__) for one in warnings.filters if not (one[1] or one[3] or one[4])
            and one[2].__module__ == "builtins"]  # fmt: skip


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def _numpy() -> int:
    numpy = sys.modules.get("numpy")
    return hash(numpy.random.get_state()[1].tobytes()) if numpy is not None and hasattr(numpy, "random") else 0


def _is_hooks(name: str, value: Any) -> bool:
    return name.startswith("_global") and isinstance(value, dict)


def _files(folder: str | None) -> list[str]:
    if folder is None:
        return []
    found = [path for path in sorted(Path(folder).rglob("*"))[:100] if not is_torchs_folder(str(path))]
    # (multiprocessing's sockets: a worker of a loader that is ended in the middle of an epoch leaves them)
    found = [path for path in found if not path.relative_to(folder).parts[0].startswith("pymp-")]
    return [_known(path) for path in found]


def _known(path: Path) -> str:
    with contextlib.suppress(OSError):  # another process may just have removed it
        found = path.lstat()
        return f"{path.name} {found.st_size} {found.st_mtime_ns}"
    return path.name


def children() -> list[str]:
    """The child processes of each thread; nothing at all where Linux does not tell."""
    return [_read(path) for path in Path("/proc/self/task").glob("*/children")]


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""


def sent() -> int:
    """Bytes that have left over all TCP connections of this process: the kernel counts them, not Python."""
    total = 0
    for one in sockets():
        with contextlib.suppress(OSError, struct.error):
            total += struct.unpack_from("Q", one.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 232), _SENT_AT)[0]
    return total


def sockets() -> Iterator[socket.socket]:
    """Those of this process, whoever has opened them, Python or C++."""
    with not_the_answer():
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                    with socket.socket(fileno=os.dup(int(number))) as one:
                        yield one
