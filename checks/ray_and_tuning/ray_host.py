"""The Ray that its checks use. It is started in a process of its own, and kept a while for the next check.

Starting Ray costs more than most searches. So the first check starts it, and it ends a minute after the last one. It
never outlives the process that has started it: the host reads from a pipe, and whichever way that process ends, even
killed, the pipe is closed, and the host stops Ray.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator

import psutil

from checks.verdicts import Wrong
from lessons.launchers.processes import clean_environment, kill_all

IDLE_SECONDS = 60.0
_START_SECONDS = 200.0  # it takes about eight; on a machine that is busy with other work many times that
_STOP_SECONDS = 20.0
CPUS = 2


class Host:
    """A process that holds a Ray.

    Attributes:
        address: for ``ray.init(address=…)``.
        storage: a folder for experiments.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=clean_environment(),
            start_new_session=True,  # an interrupt in the terminal is for the kernel
        )
        try:
            readable, _, _ = select.select([self._process.stdout], [], [], _START_SECONDS)
            line = self._process.stdout.readline() if readable else b""
            self.address, self.storage = json.loads(line or b"[]")
        except BaseException as error:
            self.stop()
            if isinstance(error, ValueError):
                raise Wrong("Ray did not start here, so nothing was judged: run the check again") from None
            raise

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """End Ray and the process that holds it; whatever is left of them is killed."""
        family = []
        with contextlib.suppress(psutil.Error):
            family = psutil.Process(self._process.pid).children(recursive=True)
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        kill_all(lambda: [process for process in family if process.is_running()])


_host: Host | None = None
_idle: threading.Timer | None = None
_lock = threading.Lock()


@contextlib.contextmanager
def running() -> Iterator[Host]:
    """A Ray for one check. If the check ends with an exception, Ray is stopped, for who knows what still runs there."""
    global _host, _idle
    with _lock:
        if _idle is not None:
            _idle.cancel()
        if _host is None or not _host.alive:
            atexit.register(stop)
            _host = Host()
        host, _idle = _host, None
    try:
        yield host
    except BaseException:
        stop()
        raise
    with _lock:
        _idle = threading.Timer(IDLE_SECONDS, lambda: stop(threading.current_thread()))
        _idle.daemon = True
        _idle.start()


def stop(timer: threading.Thread | None = None) -> None:
    """Stop the Ray of the checks, if there is one. A timer stops it only if no check has begun since it was set."""
    global _host, _idle
    with _lock:
        if timer is not None and timer is not _idle:
            return
        if _idle is not None:
            _idle.cancel()
        host, _host, _idle = _host, None, None
        if host is not None:
            host.stop()


def main() -> None:
    """Hold a Ray until whoever started this process closes the pipe, or is gone."""
    from lessons.launchers import ray_here

    out = os.dup(1)
    os.dup2(2, 1)  # Ray's own words are not part of the conversation
    here = ray_here.start(CPUS)  # it is patient, and tries again
    try:
        os.write(out, json.dumps([here.address, str(here.storage)]).encode() + b"\n")
        sys.stdin.buffer.read()  # until the end
    finally:
        ray_here.stop()


if __name__ == "__main__":
    main()
