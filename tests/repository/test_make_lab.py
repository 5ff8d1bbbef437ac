"""What a newcomer's first command does: ``make lab`` serves the course and opens the map with one's own progress."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_support import SECONDS, find_browser, start_browser
from ranks_support import descendants, eventually, gone

from course import outline

ROOT = Path(__file__).parents[2]
VENV = Path(sys.prefix)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What JupyterLab says of itself, as `make lab` has started it, and the page that it opens."""
    if not (VENV / ".ready").exists():
        pytest.skip("these tests do not run in an environment that `make setup` has made")
    state = tmp_path_factory.mktemp("lab")
    options = ["--no-browser", "--ServerApp.ip=127.0.0.1", "--port=0", "--allow-root", "--expose-app-in-browser"]
    folders = {f"JUPYTERLAB_{name}_DIR": str(state / name) for name in ("SETTINGS", "WORKSPACES")}
    server = subprocess.Popen(
        ["make", "--silent", "lab", f"VENV={VENV}", f"LAB_ARGS={' '.join(options)}"],
        cwd=ROOT,
        env={**os.environ, **folders, "JUPYTER_RUNTIME_DIR": str(state), "COURSE_PROGRESS": str(state / "progress")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert eventually(lambda: list(state.glob("jpserver-*-open.html")), 120), "JupyterLab did not start"
        (about,) = (path for path in state.glob("jpserver-*.json"))
        info = json.loads(about.read_text())
        assert eventually(lambda: "START.md" in contents(info, ""), 60)  # it writes its address before it listens
        yield info | {"opened": "".join(page.read_text() for page in state.glob("jpserver-*-open.html"))}
    finally:
        pids = [server.pid, *descendants(server.pid)]
        os.killpg(server.pid, signal.SIGTERM)
        eventually(lambda: gone(pids), 120)  # it waits for its kernels
        left = [Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ") for pid in pids if not gone([pid])]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)  # what did not end by itself, or began meanwhile
        server.wait()
    assert left == []


def answer(info: dict[str, Any], path: str) -> Any:
    """What JupyterLab's server says at an address."""
    request = urllib.request.Request(f"{info['url']}api/{path}", headers={"Authorization": f"token {info['token']}"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.load(reply)


def contents(info: dict[str, Any], path: str) -> set[str]:
    """What the file browser shows of a folder."""
    try:
        return {item["name"] for item in answer(info, f"contents/{path}")["content"]}
    except urllib.error.URLError:
        return set()


def test_make_lab_serves_the_course_and_opens_the_map_with_ones_progress(lab: dict[str, Any]) -> None:
    assert Path(lab["root_dir"]) == ROOT and "/lab/tree/START.md" in lab["opened"]
    assert "00_start_here.ipynb" in contents(lab, "notebooks")
    assert outline.notebook("single_vs_multi_node", "labs").name in contents(lab, "labs")
    assert "](notebooks/00_start_here.ipynb)" in (ROOT / "START.md").read_text(encoding="utf-8")


def test_the_file_browser_shows_what_a_learner_works_with(lab: dict[str, Any]) -> None:
    shown = contents(lab, "")
    learners = {"notebooks", "labs", "solutions", "scripts", "docs", "README.md", "START.md"}
    assert learners <= shown
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout, so which other files are the course's is unknown")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert shown & {name.partition("/")[0] for name in listed.splitlines()} == learners - {"START.md"}
    assert not [name for name in shown if name.endswith(".egg-info")]


@pytest.mark.extras
def test_a_card_of_the_map_leads_to_its_lecture(lab: dict[str, Any]) -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    if (executable := find_browser()) is None:
        pytest.skip("no Chromium or Chrome is installed here, so the map was not clicked")
    lecture = outline.lectures()[1]
    with sync_api.sync_playwright() as playwright:
        browser = start_browser(playwright, executable)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(SECONDS * 1000)
        page.goto(f"{lab['url']}lab/tree/START.md?token={lab['token']}")
        cards = page.locator(".jp-MarkdownViewer table a:has(img)")
        sync_api.expect(cards).to_have_count(len(outline.lectures()), timeout=SECONDS * 1000)
        if folder := os.environ.get("SCREENSHOTS"):
            page.wait_for_timeout(2000)
            page.screenshot(path=Path(folder, "start-page.png"))
        page.get_by_role("link", name=f"{lecture.number:02d} {lecture.title}").first.click()
        sync_api.expect(page.locator(".jp-Notebook h1").first).to_contain_text(lecture.title, timeout=SECONDS * 1000)
        # (JupyterLab's server that is ended while a kernel starts may wait for it for ever.)
        assert eventually(lambda: [each["execution_state"] for each in answer(lab, "kernels")] == ["idle"], 60)
        browser.close()
