"""A Python that has imported torch already, for lectures that start real launchers again and again.

To import torch takes two seconds of a processor, far more than a short training, and torchrun's agents and workers, and
those of MPI and Horovod, are fresh processes that all pay for it. After ``start("torch")`` they do not: ``python`` is
then a small program that asks a process which has imported torch to fork, lends the copy its own streams, environment,
folder and network, and ends as the copy ends. The launchers are the real ones, and see nothing of it.

Only ``fork`` makes this possible, so elsewhere than on Linux, and whenever something does not fit, the ordinary Python
is started. Nothing has been computed before the copy is made, so no thread of torch's is missing.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from utils.launchers.warm_python.wire import receive, send

_folder: Path | None = None
_process: subprocess.Popen[bytes] | None = None


def start(*modules: str) -> None:
    """From now on torchrun, mpiexec and horovodrun of ``utils.launchers`` start copies of a process with these modules.

    Returns at once, while that process still imports. It ends with ``stop()``, or with this process.

    Args:
        modules: what it imports, "torch" for instance. They must not start threads.
    """
    global _folder, _process
    stop()
    if sys.platform != "linux":
        return
    _folder = Path(tempfile.mkdtemp(prefix="warm-"))
    environment = dict(os.environ) | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[3])
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(_folder / "socket"))
    listener.listen(128)  # from now on: who asks while that process still imports, waits
    _process = subprocess.Popen(
        [sys.executable, "-m", "utils.launchers.warm_python.server", str(listener.fileno()), *modules],
        pass_fds=[listener.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=environment | {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"},
        start_new_session=True,
    )
    listener.close()
    stub = Path(__file__).with_name("stub.py")
    copy = f"exec {sys.executable} -I -S {stub} {_folder}/socket {sys.executable}"
    for name, first in ("python", ""), ("torchrun", "-m torch.distributed.run"):
        script = _folder / name
        script.write_text(f'#!/bin/sh\n{copy} {first} "$@"\n')
        script.chmod(0o700)
    atexit.register(stop)


def stop() -> None:
    """End that process and all its copies. Without one, nothing happens."""
    global _folder, _process
    if _folder is None or _process is None:
        return
    atexit.unregister(stop)
    folder, process, _folder, _process = _folder, _process, None, None
    process.terminate()  # it ends its copies first
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running(*modules: str) -> Iterator[None]:
    """``start``, and ``stop`` at the end, whatever happens in between."""
    start(*modules)
    try:
        yield
    finally:
        stop()


def executable() -> str:
    """What to start instead of ``sys.executable``; without a ``start`` it is ``sys.executable``."""
    return sys.executable if _folder is None or not _alive() else str(_folder / "python")


def environment() -> dict[str, str]:
    """Variables for launchers: what torchrun starts its workers with, and a ``PATH``. {} without a ``start``."""
    if _folder is None or not _alive():
        return {}
    path = os.pathsep.join((str(_folder), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    return {"PYTHON_EXEC": str(_folder / "python"), "PATH": path}


def end(mark: str) -> None:
    """Kill every copy in whose environment a value begins with ``mark``, and wait until they have gone."""
    if _folder is None or not _alive():
        return
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(_folder / "socket"))
        send(connection, {"end": mark})
        receive(connection)


def _alive() -> bool:
    return _process is not None and _process.poll() is None
