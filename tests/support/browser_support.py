"""A real JupyterLab server and a real browser for tests: what a learner's hands and eyes would do.

``LabServer`` starts JupyterLab on a free loopback port with a token and with folders of its own, so that neither the
repository nor the settings of whoever runs the tests are touched. ``LabWindow`` is JupyterLab in a browser: loaded
once, it shows one notebook at a time. ``LabPage``, such a notebook, clicks what a learner would click and reads the
notebook as the page holds it.
"""

from __future__ import annotations

import functools
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import Browser, Page, Playwright, Route, expect
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from utils.ranks.lifetimes import end_with

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--no-sandbox",  # in a container there is often no user namespace for it; only our own server is visited
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",  # Docker's /dev/shm is too small for a page with many pictures
)
# A learner with a network decides about the news once; without one, the question only hides the notebook.
SETTINGS = {
    "@jupyterlab/apputils-extension/notification.jupyterlab-settings": {"fetchNews": "false", "checkForUpdates": False}
}
# Set by pytest, make or a caller; a kernel that sees them would not behave as a learner's does.
NOT_FOR_KERNELS = ("PYTEST_VERSION", "PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "RANKS_LIVE", "COURSE_ANSWERS")

SECONDS = 120.0  # a bound on hanging, not on speed
NOTEBOOK = "window.jupyterapp?.shell?.currentWidget"
# The element that scrolls the notebook.
_SCROLLER = """() => {
    let e = document.querySelector('.jp-Notebook .jp-Cell');
    while (e.parentElement && !(e.scrollHeight > e.clientHeight + 2
           && ['auto', 'scroll'].includes(getComputedStyle(e).overflowY))) e = e.parentElement;
    return e;
}"""
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def find_browser() -> str | None:
    """A Chromium or Chrome that is installed, or None."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def start_browser(playwright: Playwright, executable: str) -> Browser:
    return playwright.chromium.launch(executable_path=executable, args=list(FLAGS), timeout=60_000)


class LabServer:
    """JupyterLab on ``folder``; use it as a context manager. All its own files go into ``state``."""

    def __init__(self, folder: Path, state: Path) -> None:
        self.folder, self.state = folder, state
        self.token = secrets.token_hex(16)
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> LabServer:
        for name in ("config", "data", "runtime", "workspaces", "settings", "ipython"):
            (self.state / name).mkdir(parents=True)
        for name, values in SETTINGS.items():
            path = self.state / "settings" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(values), encoding="utf-8")
        environment = {key: value for key, value in os.environ.items() if key not in NOT_FOR_KERNELS} | {
            "JUPYTER_CONFIG_DIR": str(self.state / "config"),
            "JUPYTER_DATA_DIR": str(self.state / "data"),
            "JUPYTER_RUNTIME_DIR": str(self.state / "runtime"),
            "JUPYTERLAB_WORKSPACES_DIR": str(self.state / "workspaces"),
            "JUPYTERLAB_SETTINGS_DIR": str(self.state / "settings"),
            "IPYTHONDIR": str(self.state / "ipython"),
            "COURSE_PROGRESS": str(self.state / "progress.json"),
            "JUPYTER_TOKEN": self.token,  # not on the command line, where every user of the machine could read it
        }
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--expose-app-in-browser"]
        command += ["--ServerApp.ip=127.0.0.1", "--ServerApp.port=18888", "--ServerApp.port_retries=200"]
        command += [f"--ServerApp.root_dir={self.folder}", "--LabApp.news_url="]
        command += ["--ServerApp.allow_root=True"] if getattr(os, "geteuid", lambda: 1)() == 0 else []
        with (self.state / "server.log").open("wb") as log:
            self.process = subprocess.Popen(
                command,
                env=environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=functools.partial(end_with, os.getpid()),  # also when the tests are ended half-way
            )
        try:
            self._wait_until_up(SECONDS)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait_until_up(self, seconds: float) -> None:
        """The server writes a file with the port that it really got."""
        assert self.process is not None
        end = time.monotonic() + seconds
        path = self.state / "runtime" / f"jpserver-{self.process.pid}.json"
        while time.monotonic() < end and self.process.poll() is None:
            try:
                self.url = json.loads(path.read_text(encoding="utf-8"))["url"]
                return
            except (OSError, ValueError, KeyError):
                time.sleep(0.1)
        raise RuntimeError(f"JupyterLab did not start:\n{self.log()[-3000:]}")

    def log(self) -> str:
        return (self.state / "server.log").read_text(encoding="utf-8", errors="replace")

    def processes(self) -> list[psutil.Process]:
        """Kernels, ranks, and whatever else the server has started."""
        assert self.process is not None
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def stop(self) -> None:
        """End the server, its kernels and their ranks, by pid."""
        if self.process is None:
            return
        family = self.processes()
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for process in still_alive(family, 10):
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        self.process = None


def still_alive(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that have not ended after so many seconds."""
    return psutil.wait_procs(processes, timeout=seconds)[1]


def seen_text(output: dict[str, Any]) -> str:
    """The text of a notebook output, without colours."""
    if output["output_type"] == "stream":
        text = output["text"]
    elif output["output_type"] == "error":
        text = "\n".join(output["traceback"])
    else:
        text = output["data"].get("text/plain", "")
    return _ESCAPES.sub("", "".join(text))


class LabWindow:
    """JupyterLab in the browser; loading it takes longer than opening a notebook, so it is loaded once.

    Attributes:
        blocked: addresses beyond this machine that the open notebook asked for (and did not get).
        problems: exceptions in the page's own scripts since the notebook was opened.
    """

    def __init__(self, browser: Browser, server: LabServer) -> None:
        self.server = server
        self.blocked: list[str] = []
        self.problems: list[str] = []
        self._kernel: dict[str, str] = {}
        self.context = browser.new_context(viewport={"width": 1280, "height": 900})
        self.context.set_default_timeout(SECONDS * 1000)
        self.context.route(lambda url: not url.startswith((server.url, "data:", "blob:")), self._block)
        self.page: Page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.load()

    def _block(self, route: Route) -> None:
        self.blocked.append(route.request.url)
        route.abort()

    def load(self) -> None:
        """JupyterLab without any notebook."""
        self.page.goto(f"{self.server.url}lab/workspaces/{secrets.token_hex(4)}?token={self.server.token}")
        self.page.evaluate(
            "() => new Promise(done => { const look = () => window.jupyterapp"
            " ? window.jupyterapp.restored.then(() => done()) : setTimeout(look, 50); look(); })"
        )

    def shared_kernel(self) -> dict[str, str]:
        """A kernel for all notebooks that run nothing: each wants one, for its widgets."""
        if not self._kernel:
            start = "async () => (await window.jupyterapp.serviceManager.kernels.startNew({name: 'python3'})).model"
            self._kernel = self.page.evaluate(start)
        return self._kernel

    def close(self) -> None:
        self.context.close()


class LabPage:
    """A notebook open in JupyterLab, with a kernel of its own unless it is only to be looked at."""

    def __init__(self, window: LabWindow, path: str, own_kernel: bool = True) -> None:
        self.window, self.server, self.page, self.own_kernel = window, window.server, window.page, own_kernel
        self.blocked, self.problems = window.blocked, window.problems
        self.blocked.clear()
        self.problems.clear()
        document = {"path": path, "factory": "Notebook", "kernel": None if own_kernel else window.shared_kernel()}
        opening = "async document => { await window.jupyterapp.commands.execute('docmanager:open', document); }"
        self.page.evaluate(opening, document)
        self.page.wait_for_function(
            f"{NOTEBOOK}?.context?.path === {json.dumps(path)} && {NOTEBOOK}?.context?.isReady"
            f" && {NOTEBOOK}.content.widgets.length === {NOTEBOOK}.context.model.cells.length"
        )
        self.wait_for_kernel()
        # All pictures have come, or will not come.
        self.page.wait_for_function("[...document.querySelectorAll('.jp-Notebook img')].every(i => i.complete)")

    def close(self) -> None:
        """Shut the kernel down, and close the notebook without saving it."""
        try:
            self.page.evaluate(
                f"""async own => {{
                    const notebook = {NOTEBOOK};
                    if (own) await notebook?.context?.sessionContext?.shutdown();
                    notebook?.dispose();
                }}""",
                self.own_kernel,
            )
        except PlaywrightError:  # the page is broken; the server ends its kernels at the latest when it stops
            self.window.load()

    # ------------------------------------------------------------------ what the page holds
    def cells(self) -> list[dict[str, Any]]:
        """The notebook's cells as the page holds them now, saved or not."""
        return list(self.page.evaluate(f"{NOTEBOOK}.context.model.toJSON()")["cells"])

    def code_cells(self) -> list[dict[str, Any]]:
        return [cell for cell in self.cells() if cell["cell_type"] == "code"]

    def kernel_status(self) -> str:
        return str(self.page.evaluate(f"{NOTEBOOK}?.context?.sessionContext?.session?.kernel?.status ?? 'none'"))

    def text_of(self, number: int) -> str:
        """All that the cell (counted from 0, code cells only) shows as text."""
        return "".join(seen_text(output) + "\n" for output in self.code_cells()[number]["outputs"])

    # ------------------------------------------------------------------ waiting
    def wait_for_kernel(self, seconds: float = SECONDS) -> None:
        session = f"{NOTEBOOK}?.context?.sessionContext"
        try:
            self.page.wait_for_function(f"{session}?.session?.kernel?.status === 'idle'", timeout=seconds * 1000)
        except PlaywrightTimeout:
            status = f"[{session}?.session?.kernel?.status, {session}?.session?.kernel?.connectionStatus]"
            kernels = [process.status() for process in self.server.processes()]
            raise AssertionError(
                f"after {seconds:.0f} s the kernel is not idle but {self.page.evaluate(status)}; processes: {kernels}"
            ) from None

    def wait_until_run(self, seconds: float = SECONDS) -> None:
        """Until all code cells have execution counts and the kernel is idle, or a cell failed that was not meant to."""
        done = f"""() => {{
            const cells = {NOTEBOOK}.context.model.toJSON().cells
                .filter(c => c.cell_type === 'code' && c.source.length);
            const idle = {NOTEBOOK}.context.sessionContext.session?.kernel?.status === 'idle';
            const waiting = [...document.querySelectorAll('.jp-Notebook .jp-InputPrompt')]
                .some(prompt => prompt.textContent.includes('*'));
            const failed = cells.some(c => c.outputs.some(o => o.output_type === 'error')
                && !c.metadata.tags?.includes('raises-exception'));
            return idle && !waiting && (failed || cells.every(c => c.execution_count !== null));
        }}"""
        self.page.wait_for_function(done, timeout=seconds * 1000, polling=250)

    def wait_for_text(self, number: int, text: str, seconds: float = SECONDS) -> str:
        """Until the cell (counted from 0, code cells only) shows this text; returns all of its text."""
        end = time.monotonic() + seconds
        while text not in (shown := self.text_of(number)):
            if time.monotonic() > end:
                raise AssertionError(f"after {seconds:.0f} s the cell shows no {text!r} but:\n{shown}")
            time.sleep(0.1)
        return shown

    # ------------------------------------------------------------------ hands
    def menu(self, *labels: str) -> None:
        """Click through a menu: ``menu("Run", "Run All Cells")``."""
        self.page.locator(".lm-MenuBar-item", has_text=re.compile(f"^{labels[0]}$")).click()
        for one in labels[1:]:
            item = self.page.locator(".lm-Menu-itemLabel", has_text=re.compile(f"^{re.escape(one)}$"))
            item.locator("visible=true").first.click()

    def run_all(self) -> None:
        """Away with stored outputs and counts, which would look like those of this run; then run all cells."""
        self.menu("Edit", "Clear Outputs of All Cells")
        assert all(not cell["outputs"] and cell["execution_count"] is None for cell in self.code_cells())
        self.menu("Run", "Run All Cells")

    def run_cell(self, number: int) -> None:
        """Select a code cell (counted from 0) with the mouse and press Ctrl+Enter."""
        cell = self.page.locator(".jp-Notebook .jp-CodeCell").nth(number)
        cell.scroll_into_view_if_needed()
        cell.locator(".cm-content").click()
        self.page.keyboard.press("Control+Enter")

    def press_stop(self) -> None:
        """The toolbar's ■."""
        self.page.locator(".jp-NotebookPanel-toolbar [data-command='notebook:interrupt-kernel']").locator(
            "visible=true"
        ).first.click()

    def restart_kernel(self) -> None:
        """Kernel → Restart Kernel…, and yes."""
        self.menu("Kernel", "Restart Kernel…")
        self.page.locator(".jp-Dialog-button.jp-mod-warn").click()
        expect(self.page.locator(".jp-Dialog")).to_have_count(0)

    # ------------------------------------------------------------------ eyes
    def screenshots(self, folder: Path, name: str, most: int = 40) -> list[Path]:
        """Pictures of the notebook from its top on, one page height after the other."""
        folder.mkdir(parents=True, exist_ok=True)
        scroller = self.page.evaluate_handle(_SCROLLER)
        height = scroller.evaluate("e => e.clientHeight")
        last_cell = self.page.locator(".jp-Notebook .jp-Cell").last
        paths: list[Path] = []
        for number in range(most):
            scroller.evaluate("(e, y) => e.scrollTo(0, y)", number * (height - 40))
            self.page.wait_for_timeout(300)
            path = folder / f"{name}-{number:02}.png"
            self.page.screenshot(path=path)
            paths.append(path)
            if last_cell.evaluate("e => e.getBoundingClientRect().bottom < innerHeight"):
                break
        return paths
