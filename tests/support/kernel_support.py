"""A real Jupyter kernel for tests: execute code, see what a notebook would store, interrupt it, kill it."""

from __future__ import annotations

import os
import queue
import signal
import sys
import time
from types import TracebackType
from typing import Any

from checks.grade.inside import manager


class Kernel:
    """A fresh kernel of this interpreter. Use as a context manager."""

    def __init__(self, **environment: str) -> None:
        self.manager, self._folder = manager()
        self.manager.start_kernel(env={**os.environ, **environment}, extra_arguments=["--log-level=40"])
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    @property
    def pid(self) -> int:
        return int(self.manager.provisioner.pid)

    def start(self, code: str, can_ask: bool = False) -> str:
        """Send code without waiting for it. ``can_ask``: its input() may ask, else (as under nbconvert) it may not."""
        return str(self.client.execute(code, allow_stdin=can_ask))

    def question(self, seconds: float = 60) -> str:
        """The prompt of the next input()."""
        return str(self.client.get_stdin_msg(timeout=seconds)["content"]["prompt"])

    def dialogue(self, code: str, *answers: str) -> tuple[list[str], list[dict[str, Any]]]:
        """Run code that asks so many times; its prompts, and its outputs."""
        request = self.start(code, can_ask=True)
        prompts = []
        for answer in answers:
            prompts.append(self.question())
            self.client.input(answer)
        return prompts, self.finish(request)

    def finish(self, request: str, seconds: float = 60) -> list[dict[str, Any]]:
        """The outputs of a request, as a notebook stores them: what was cleared is not there."""
        outputs: list[dict[str, Any]] = []
        clear_next = False
        end = time.monotonic() + seconds
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=max(0.1, end - time.monotonic()))
            except queue.Empty:
                raise TimeoutError(f"no end after {seconds} s; so far: {outputs}") from None
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                return outputs
            if kind == "clear_output":
                clear_next = bool(content["wait"])
                if not clear_next:
                    outputs = []
            elif kind in ("stream", "display_data", "execute_result", "error"):
                if clear_next:
                    outputs, clear_next = [], False
                outputs.append({"output_type": kind, **content})

    def run(self, code: str, seconds: float = 60) -> list[dict[str, Any]]:
        return self.finish(self.start(code), seconds)

    def text(self, code: str, seconds: float = 60) -> str:
        """Everything a request printed, its result, and its error, as text."""
        return as_text(self.run(code, seconds))

    def interrupt(self) -> None:
        """What JupyterLab's stop button does."""
        self.manager.interrupt_kernel()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self._folder.cleanup()


def as_text(outputs: list[dict[str, Any]]) -> str:
    parts = []
    for output in outputs:
        if output["output_type"] == "stream":
            parts.append(output["text"])
        elif output["output_type"] == "error":
            parts.append("\n".join(output["traceback"]) + "\n")
        else:
            parts.append(output["data"].get("text/plain", "") + "\n")
    return "".join(parts)


PYTHON = sys.executable
