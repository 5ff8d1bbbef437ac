"""A fresh Jupyter kernel: cells sent to it and timed, the memory of all its processes, and an end for all of them.

Every process that a kernel starts, however far away it moves (daemons, new sessions, orphans), inherits a mark in
its environment. By this mark it is found again, for the memory that it uses and for ending it.
"""

from __future__ import annotations

import os
import queue
import re
import time
from pathlib import Path
from typing import Any

from here import ROOT
from jupyter_client.manager import KernelManager

from lessons.launchers import processes

_MARK = "LAUNCHER_BENCHMARK"
_RESULT = re.compile(r"rank (\d+) has the sum (\d+)\.")
_READY_SECONDS, _PRINTED_SECONDS = 60.0, 10.0
_FOLDERS = ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "HF_HOME", "TMPDIR")


class RunFailed(Exception):
    """A run that gave no figures; the text says why."""


class FreshKernel:
    """A kernel of its own for one run; a context manager, so that nothing of it outlives the run.

    It has no GPU, only loopback, and reads or writes nothing in the user's home, whoever the contestant is.

    Args:
        folder: where everything that it writes goes (IPython's profile, connection files, temporary files).
    """

    def __init__(self, folder: Path) -> None:
        self._mark = processes.new_mark()
        self._manager = KernelManager(kernel_name="python3", connection_file=str(folder / f"{self._mark}.json"))
        self._client = self._manager.blocking_client()
        self._log = folder / f"{self._mark}.log"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RANKS_", "ACCELERATE_"))}
        places = {name: str(folder / name.lower()) for name in _FOLDERS}
        for place in places.values():
            Path(place).mkdir(exist_ok=True)
        self._environment = kept | places | {_MARK: self._mark, "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}

    def __enter__(self) -> FreshKernel:
        try:
            with open(self._log, "wb") as log:  # what the kernel itself says: shown only if it dies
                self._manager.start_kernel(env=self._environment, cwd=str(ROOT), stdout=log, stderr=log)
            self._client = self._manager.blocking_client()
            self._client.start_channels()
            self._client.wait_for_ready(timeout=_READY_SECONDS)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End the kernel and all that it started, at once."""
        self._client.stop_channels()
        if self._manager.has_kernel:
            self._manager.shutdown_kernel(now=True)
        self._manager.cleanup_resources()
        processes.kill_all(lambda: processes.marked(_MARK, self._mark))

    def run(self, cells: list[str], ranks: int, timeout: float) -> float:
        """Run cells; return the seconds from sending the first until the last one's reply is here.

        Raises:
            RunFailed: a cell fails, takes longer than ``timeout`` seconds, or does not show every rank's sum.
        """
        start = time.perf_counter()
        return self.wait(self.send(cells), ranks, timeout) - start

    def send(self, cells: list[str]) -> list[str]:
        """Send cells, one right behind the other; return what :meth:`wait` wants."""
        return [self._client.execute(cell) for cell in cells]

    def wait(self, sent: list[str], ranks: int, timeout: float) -> float:
        """Wait for the replies, check the sums of ``ranks`` ranks, and return when (``perf_counter``) the last came."""
        deadline, replies = time.monotonic() + timeout, {}
        while not replies.keys() >= set(sent):
            message = self._next_reply(deadline)
            replies[message["parent_header"].get("msg_id")] = message["content"]
        replied = time.perf_counter()
        for reply in (replies[name] for name in sent):
            if reply["status"] != "ok":
                lines = "\n".join(reply.get("traceback", [])[-6:]) or reply["status"]
                raise RunFailed(f"a cell failed: {_without_colours(lines)}")
        if ranks:
            self._check_sums(ranks)
        return replied

    def memory(self) -> tuple[int, int]:
        """Bytes that the kernel and all its processes use (the sum of their PSS), and how many they are."""
        sizes = [_proportional_set_size(process.pid) for process in processes.marked(_MARK, self._mark)]
        return sum(sizes), len(sizes)

    def _check_sums(self, ranks: int) -> None:
        """What the last cell printed may come a moment after its reply."""
        text, deadline = "", time.monotonic() + _PRINTED_SECONDS
        while time.monotonic() < deadline:
            sums = {int(rank): int(total) for rank, total in _RESULT.findall(text)}
            if sums == dict.fromkeys(range(ranks), ranks * (ranks - 1) // 2):
                return
            try:
                content = self._client.get_iopub_msg(timeout=0.2)["content"]
            except queue.Empty:
                continue
            text += content.get("text") or content.get("data", {}).get("text/plain", "")
        raise RunFailed(f"not every rank showed its sum; what was shown: {_without_colours(text)[-2000:]!r}")

    def _next_reply(self, deadline: float) -> dict[str, Any]:
        while time.monotonic() < deadline:
            try:
                return self._client.get_shell_msg(timeout=1)
            except queue.Empty:
                if not self._manager.is_alive():
                    raise RunFailed(f"the kernel died: {processes.read(self._log)[-2000:]}") from None
        raise RunFailed("no reply within the time-out")


def _proportional_set_size(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it has ended
    match = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def _without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
