"""Where a rank is: which line of the reader's code, which collective, which ranks it needs, what has not ended."""

from __future__ import annotations

import linecache
import os
import pickle
import re
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = Path(HERE).parents[__name__.count(".") - 1]  # where the package lies whose part, or whole, this one is
IN_CHECKOUT = (ROOT / "pyproject.toml").exists()  # (else what is beside it are strangers)
OURS = {str(one.parent) for one in ROOT.glob(f"{'*' if IN_CHECKOUT else __name__.partition('.')[0]}/__init__.py")}
_LIBRARIES = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
_LIBRARY = (*_LIBRARIES, *(folder + os.sep for folder in OURS))
_INSTALLED = re.compile(r"/(?:site|dist)-packages/")  # also where a venv sees the system's packages, or the user's own
_DISTRIBUTED = f"torch{os.sep}distributed{os.sep}"
# They stand between the reader's call and the real one:
_NOT_A_CALL = {"wrapper", "_call_impl", "_wrapped_call_impl"}
_POINT_TO_POINT = re.compile(r"(?:send|recv) (\d+)(?:->|<-)(\d+)")

LOOKS = 3  # on a busy machine, who computes may be without a core for a tenth of a second
POLLING = 0.005  # seconds of a core that a wait may use in a tenth of a second, as that for workers in a TCPStore does
Frames = list[tuple[FrameType, int]]
looking = threading.Lock()  # whoever holds frames of a running thread holds its tensors too: who counts these waits


def frames_under(frame: FrameType | None) -> Frames:
    """The frames of a running thread, outermost first, each with its line."""
    frames = []
    while frame is not None:
        frames.append((frame, frame.f_lineno or frame.f_code.co_firstlineno))  # some of Python's steps have no line
        frame = frame.f_back
    return frames[::-1]


def frames_of(error: BaseException) -> Frames:
    """The frames that an exception passed through, outermost first, each with its line."""
    frames, trace = [], error.__traceback__
    while trace is not None:
        frames.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    return frames


def nowhere() -> dict[str, Any]:
    """The place of a rank that is in no line of the reader's code, and in no collective."""
    return {"line": None, "code": None, "call": None, "begun": None, "ranks": None, "peer": None}


def place(frames: Frames) -> dict[str, Any]:
    """The innermost line of the reader's own code, and the collective called from there, if any.

    As a dict: line and code; call; ranks of the call's group, or peer, its partner; begun: see
    ``unfinished_collective``.
    """
    return _with_code(*_spot(frames))


def place_of(thread: int) -> dict[str, Any]:
    """The same of a running thread, now. Its frames are gone before a file is read, which lets the thread run on."""
    with looking:
        found, file = _spot(frames_under(sys._current_frames()[thread]))
    return _with_code(found, file)


def _with_code(found: dict[str, Any], file: str) -> dict[str, Any]:
    return found | {"code": (file and linecache.getline(file, found["line"]).strip()) or None}


def _spot(frames: Frames) -> tuple[dict[str, Any], str]:
    """The place without its code, and the file in which that stands."""
    found, file = nowhere(), ""
    mine = [index for index, (frame, _) in enumerate(frames) if is_readers(frame.f_code.co_filename)]
    if mine:
        frame, line = frames[mine[-1]]
        file = frame.f_code.co_filename
        found["line"] = line
    for frame, _ in frames[mine[-1] + 1 if mine else 0 :]:
        code = frame.f_code
        if _DISTRIBUTED in code.co_filename and code.co_name not in _NOT_A_CALL:
            found |= {"call": code.co_name} | dict(_partners(frame))
            break
    return found, file


def seconds_of_core(thread: int) -> float:
    """What a thread of this process has computed so far; on systems that cannot tell (macOS), what all threads have."""
    if hasattr(time, "pthread_getcpuclockid"):
        return time.clock_gettime(time.pthread_getcpuclockid(thread))
    return time.process_time()


def stands_still(thread: int, seconds: float = 0.1) -> tuple[bool, bool]:
    """Whether a thread stays at one instruction for a moment, and whether it also computes nothing there.

    Who sleeps, or waits in C++ as DDP does in backward(), computes nothing; who waits for a GPU stays, but computes:
    CUDA asks again and again.
    """
    frame = sys._current_frames()[thread]
    at = frame.f_lasti
    for _ in range(LOOKS):
        used = seconds_of_core(thread)
        time.sleep(seconds)
        stays = sys._current_frames().get(thread) is frame and frame.f_lasti == at
        if not stays or seconds_of_core(thread) - used >= POLLING:
            return stays, False
    return True, True


def imports_torch(frame: FrameType | None) -> bool:
    """Whether a part of torch is being imported. Cut in the middle, torch._dynamo (which the first optimizer or DDP of
    a process imports) would be broken for as long as the rank lives. An import that never ends is killed in the end."""
    while frame is not None:
        if frame.f_code.co_name == "_find_and_load" and str(frame.f_locals.get("name")).split(".")[0] == "torch":
            return True
        frame = frame.f_back
    return False


def is_readers(file: str) -> bool:
    """Whether code of this file is the reader's own, not a library's or ours."""
    theirs = file.startswith(("<frozen", "<string", *_LIBRARY)) or _INSTALLED.search(file)
    return not theirs or f"{os.sep}ipykernel_" in file


def _partners(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """From the arguments of a torch.distributed call: the ranks of its group, or its one partner."""
    dist = sys.modules.get("torch.distributed")
    arguments = frame.f_locals
    name = frame.f_code.co_name
    try:
        if name in ("send", "isend") or name in ("recv", "irecv"):
            peer = arguments.get("dst" if "send" in name else "src")
            if peer is not None:
                yield "peer", int(peer)
        else:
            yield "ranks", list(dist.get_process_group_ranks(arguments.get("group")))  # type: ignore[union-attr]
    except Exception:
        pass  # a call without a group, or a group that is gone


def unfinished_collective() -> dict[str, Any]:
    """The oldest collective of this rank that has not ended: its name, the ranks of its group or its partner.

    Empty if there is none, or nobody knows. As torch's flight recorder tells it: NCCL's calls return at once, and so do
    those with ``async_op=True`` and DistributedDataParallel's own; the rank waits later, in a line that names none.
    """
    try:
        from torch._C import _distributed_c10d as c10d

        for recorder in ("_dump_nccl_trace", "_dump_fr_trace"):  # NCCL's own, and that of the other backends
            dump = getattr(c10d, recorder, None)
            entries = pickle.loads(dump(True, False, False))["entries"] if dump else []
            waiting = [entry for entry in entries if not entry["retired"] and entry["state"] != "completed"]
            if waiting:
                return _described(min(waiting, key=lambda entry: entry["time_created_ns"]))
    except Exception:
        pass  # an aid only, and torch's format may change
    return {}


def _described(entry: dict[str, Any]) -> dict[str, Any]:
    name = entry["profiling_name"].split(":", 1)[-1]
    groups = sys.modules["torch.distributed"].distributed_c10d._world.pg_names
    group = next((group for group, known in groups.items() if known == entry["process_group"][0]), None)
    ranks = list(sys.modules["torch.distributed"].get_process_group_ranks(group)) if group is not None else None
    partners = _POINT_TO_POINT.match(name)
    if partners is None:
        return {"begun": name, "ranks": ranks}
    peer = int(partners[2])
    return {"begun": name.split()[0], "peer": ranks[peer] if ranks else peer}


def gpu_works() -> bool:
    """Whether this rank's GPU has not done yet what its default stream was given; asks, and waits for nothing.

    NCCL's collectives have streams of their own, of which the flight recorder knows.
    """
    try:
        import torch

        return torch.cuda.is_initialized() and not torch.cuda.default_stream(int(os.environ["LOCAL_RANK"])).query()
    except Exception:
        return False  # an aid only: CUDA may have failed for good
