"""What a newcomer's first command does: ``make lab`` serves the course and opens the map with one's own progress."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from ranks_support import descendants, eventually, gone

from course import outline

ROOT = Path(__file__).parents[2]
VENV = Path(sys.prefix)


def test_make_lab_serves_the_course_and_opens_the_map_with_ones_progress(tmp_path):
    if not (VENV / ".ready").exists():
        pytest.skip("these tests do not run in an environment that `make setup` has made")
    options = ["--no-browser", "--ServerApp.ip=127.0.0.1", "--port=0", "--allow-root"]
    server = subprocess.Popen(
        ["make", "--silent", "lab", f"VENV={VENV}", f"LAB_ARGS={' '.join(options)}"],
        cwd=ROOT,
        env={**os.environ, "JUPYTER_RUNTIME_DIR": str(tmp_path), "COURSE_PROGRESS": str(tmp_path / "progress")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert eventually(lambda: list(tmp_path.glob("jpserver-*-open.html")), 120), "JupyterLab did not start"
        (state,) = (path for path in tmp_path.glob("jpserver-*.json"))
        info = json.loads(state.read_text())
        assert Path(info["root_dir"]) == ROOT

        def contents(path: str) -> list[str]:
            request = urllib.request.Request(
                f"{info['url']}api/contents/{path}", headers={"Authorization": f"token {info['token']}"}
            )
            try:
                with urllib.request.urlopen(request, timeout=30) as reply:
                    return [item["name"] for item in json.load(reply)["content"]]
            except urllib.error.URLError:  # it writes its address before it listens there
                return []

        assert eventually(lambda: "00_start_here.ipynb" in contents("notebooks"), 60)
        assert outline.notebook("single_vs_multi_node", "labs").name in contents("labs")
        opened = "".join(page.read_text() for page in tmp_path.glob("jpserver-*-open.html"))
        assert "/lab/tree/START.md" in opened
        assert "](notebooks/00_start_here.ipynb)" in (ROOT / "START.md").read_text(encoding="utf-8")
    finally:
        pids = [server.pid, *descendants(server.pid)]
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)
    assert eventually(lambda: gone(pids))
