"""A fresh Jupyter kernel: cells sent to it and timed, the memory of all its processes, and an end for all of them.

Every process that a kernel starts, however far away it moves (daemons, new sessions, orphans), inherits a mark in
its environment. By this mark it is found again, for the memory that it uses and for ending it.
"""

from __future__ import annotations

import os
import queue
import re
import time
import uuid
from pathlib import Path
from typing import Any

import psutil
from jupyter_client.manager import KernelManager

ROOT = Path(__file__).resolve().parent.parent
_MARK = "LAUNCHER_BENCHMARK"
_RESULT = re.compile(r"rank (\d+) has the sum (\d+)\.")
_READY_SECONDS = 60.0
_END_SECONDS = 20.0


class RunFailed(Exception):
    """A run that gave no figures; the text says why."""


class FreshKernel:
    """A kernel of its own for one run; a context manager, so that nothing of it outlives the run.

    Args:
        folder: where everything that it writes goes (IPython's profile, connection files, temporary files).
    """

    def __init__(self, folder: Path) -> None:
        self._value = uuid.uuid4().hex
        self._manager = KernelManager(kernel_name="python3", connection_file=str(folder / f"{self._value}.json"))
        self._client: Any = None
        self._environment = _environment(folder) | {_MARK: self._value}
        self._log = folder / f"{self._value}.log"

    def __enter__(self) -> FreshKernel:
        try:
            with open(self._log, "wb") as log:  # what the kernel itself says: shown only if it dies
                self._manager.start_kernel(env=self._environment, cwd=str(ROOT), stdout=log, stderr=log)
            self._client = self._manager.blocking_client()
            self._client.start_channels()
            self._client.wait_for_ready(timeout=_READY_SECONDS)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.end()
        except BaseException:  # interrupted in the middle of it
            self.end()
            raise

    def run(self, cells: list[str], ranks: int, timeout: float) -> float:
        """Run cells; return the seconds from sending the first until the last one's reply is here.

        Raises RunFailed when a cell fails, takes longer than ``timeout`` seconds, or does not show every rank's sum.
        """
        start = time.perf_counter()
        sent = self.send(cells)
        return self.wait(sent, ranks, timeout) - start

    def time(self, cell: str, timeout: float) -> float:
        """Run a cell; return the seconds until its reply is here. Raises RunFailed as ``run`` does."""
        start = time.perf_counter()
        replied = self.wait(self.send([cell]), 0, timeout)
        return replied - start

    def send(self, cells: list[str]) -> list[str]:
        """Send cells, one right behind the other; return what :meth:`wait` wants."""
        return [self._client.execute(cell) for cell in cells]

    def wait(self, sent: list[str], ranks: int, timeout: float) -> float:
        """Wait for the replies, check the sums of ``ranks`` ranks, and return when (``perf_counter``) the last came."""
        deadline = time.monotonic() + timeout
        replies: dict[str, Any] = {}
        while not replies.keys() >= set(sent):
            message = self._next(self._client.get_shell_msg, deadline)
            replies[message["parent_header"].get("msg_id")] = message["content"]
        replied = time.perf_counter()
        self._check([replies[one] for one in sent], ranks)
        return replied

    def processes(self) -> list[psutil.Process]:
        """The kernel and everything that it started and that is still there."""
        found = {process for process in psutil.process_iter() if _carries(process, self._value)}
        provisioner = self._manager.provisioner
        pid = getattr(provisioner, "pid", None)
        if pid is not None and psutil.pid_exists(pid):
            try:
                kernel = psutil.Process(pid)
                found |= {kernel, *kernel.children(recursive=True)}
            except psutil.NoSuchProcess:
                pass
        return sorted(found, key=lambda process: process.pid)

    def memory(self) -> int:
        """Bytes that the kernel and all its processes use: what several share counts once (sum of their PSS)."""
        return sum(_proportional_set_size(process.pid) for process in self.processes())

    def end(self) -> None:
        """End the kernel and all that it started, at once."""
        processes = self.processes()
        if self._client is not None:
            self._client.stop_channels()
        if self._manager.has_kernel:
            self._manager.shutdown_kernel(now=True)
        self._manager.cleanup_resources()
        deadline = time.monotonic() + _END_SECONDS
        while processes and time.monotonic() < deadline:
            for process in processes:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    pass
            _, alive = psutil.wait_procs(processes, timeout=1)
            # Asked again: one of them may have started another while it was being ended.
            processes = [*alive, *(p for p in psutil.process_iter() if _carries(p, self._value) and p not in alive)]
            processes = [process for process in processes if _runs(process)]
        if processes:
            raise RuntimeError(f"These processes could not be ended: {[process.pid for process in processes]}.")

    def _check(self, replies: list[dict[str, Any]], ranks: int) -> None:
        for reply in replies:
            if reply["status"] != "ok":
                lines = "\n".join(reply.get("traceback", [])[-6:]) or reply["status"]
                raise RunFailed(f"a cell failed: {_without_colours(lines)}")
        if not ranks:
            return
        # What the last cell printed may come a moment after its reply.
        text, deadline = "", time.monotonic() + 10
        while time.monotonic() < deadline:
            found = {int(rank): int(total) for rank, total in _RESULT.findall(text)}
            if found == dict.fromkeys(range(ranks), ranks * (ranks - 1) // 2):
                return
            try:
                message = self._client.get_iopub_msg(timeout=0.2)
            except queue.Empty:
                continue
            content = message["content"]
            text += content.get("text") or content.get("data", {}).get("text/plain", "")
        raise RunFailed(f"not every rank showed its sum; what was shown: {_without_colours(text)[-2000:]!r}")

    def _next(self, get: Any, deadline: float) -> dict[str, Any]:
        while time.monotonic() < deadline:
            try:
                return get(timeout=1)
            except queue.Empty:
                if not self._manager.is_alive():
                    raise RunFailed(f"the kernel died: {self._log.read_text(errors='replace')[-2000:]}") from None
        raise RunFailed("no reply within the time-out")


def _environment(folder: Path) -> dict[str, str]:
    """Equal for all contestants: no GPU, loopback only, and nothing read from or written to the user's home."""
    places = {
        "IPYTHONDIR": "ipython",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTER_CONFIG_DIR": "config",
        "HF_HOME": "huggingface",
        "TMPDIR": "tmp",
    }
    for name in places.values():
        (folder / name).mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RANKS_", "ACCELERATE_"))}
    environment |= {variable: str(folder / name) for variable, name in places.items()}
    return environment | {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}


def _carries(process: psutil.Process, value: str) -> bool:
    try:
        return process.environ().get(_MARK) == value
    except psutil.Error:
        return False


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _proportional_set_size(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it has ended
    match = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def _without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
