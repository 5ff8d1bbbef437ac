"""The course in a real JupyterLab and a real browser: what a learner's clicks do, and what they then see.

Pictures of the pages go into the folder that the environment variable SCREENSHOTS names: look at them now and then.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

pytest.importorskip("playwright.sync_api", reason="the JupyterLab test needs playwright: pip install --group test")
from browser_support import LabPage, LabServer, LabWindow, find_browser, seen_text, start_browser, still_alive
from playwright.sync_api import Browser, expect, sync_playwright

pytestmark = pytest.mark.extras

ROOT = Path(__file__).parents[2]
LECTURES = sorted(path.name for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
FIRST, SECOND = LECTURES[:2]
"""The first one, to which `make lab` leads, is run here too; nbval runs all of them."""
LECTURE_SECONDS = 600.0  # a bound on hanging, not on speed
MEANT = {"tags": ["raises-exception"]}
KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    executable = find_browser()
    if executable is None:
        pytest.skip("no Chromium or Chrome is installed here, so JupyterLab was not tried in a browser")
    with sync_playwright() as playwright:
        running = start_browser(playwright, executable)
        try:
            yield running
        finally:
            running.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    """JupyterLab on a copy, so that running a notebook does not change the stored one."""
    base = tmp_path_factory.mktemp("jupyterlab")
    for name in ("notebooks", "scripts", "docs", "labs", "solutions"):
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns(".ipynb_checkpoints", "__pycache__")
            shutil.copytree(ROOT / name, base / "course" / name, ignore=ignored)
    with LabServer(base / "course", base / "state") as running:
        yield running
        family = running.processes()
    assert not still_alive(family, 60), "JupyterLab has ended, and processes that it started have not"


@pytest.fixture(scope="module")
def window(browser: Browser, server: LabServer) -> Iterator[LabWindow]:
    loaded = LabWindow(browser, server)
    yield loaded
    loaded.close()


@pytest.fixture
def open_page(window: LabWindow) -> Iterator[Any]:
    """A function that opens a notebook of the server's folder; cells may be given to write it first."""
    pages: list[LabPage] = []

    def opener(path: str, *cells: Any, own_kernel: bool = True) -> LabPage:
        if cells:
            nbformat.write(new_notebook(cells=list(cells), metadata=KERNEL), window.server.folder / path)
        pages.append(LabPage(window, path, own_kernel))
        return pages[-1]

    yield opener
    for page in pages:
        page.close()


def _take_pictures(page: LabPage, name: str, most: int = 40) -> None:
    """For whoever looks at them: they take longer than all the rest."""
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshots(Path(folder), name, most)


def _assert_only_errors_that_were_meant(page: LabPage) -> None:
    for number, cell in enumerate(page.code_cells()):
        errors = [output for output in cell["outputs"] if output["output_type"] == "error"]
        meant = "raises-exception" in cell["metadata"].get("tags", [])
        text = "\n".join(map(seen_text, errors))
        assert meant or not errors, f"code cell {number + 1} failed:\n{''.join(cell['source'])}\n\n{text}"
        assert errors or not meant, f"code cell {number + 1} should have failed:\n{''.join(cell['source'])}"


def _assert_ranks_in_order(page: LabPage) -> int:
    """Stream output of each %%ranks cell goes from low ranks to high ones. Returns how many labels were seen."""
    seen = 0
    for cell in page.code_cells():
        if not "".join(cell["source"]).startswith("%%ranks"):
            continue
        printed = "".join(seen_text(output) for output in cell["outputs"] if output["output_type"] == "stream")
        ranks = [int(match) for match in re.findall(r"^ranks? (\d+)[^:\n]*:", printed, re.MULTILINE)]
        assert ranks == sorted(ranks), f"the ranks' output is not in order:\n{printed}"
        seen += len(ranks) + sum(output["output_type"] == "execute_result" for output in cell["outputs"])
    return seen


def _stored_ranks_cells(name: str) -> list[dict[str, Any]]:
    """The %%ranks cells of the lecture as it is stored."""
    notebook = json.loads((ROOT / "notebooks" / name).read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [cell for cell in code if "".join(cell["source"]).startswith("%%ranks")]


def _assert_pictures_are_seen(page: LabPage) -> None:
    broken = page.page.evaluate(
        """() => [...document.querySelectorAll('.jp-Notebook img')]
            .filter(i => !i.complete || i.naturalWidth === 0)
            .map(i => i.alt || i.src.slice(0, 80))"""
    )
    assert broken == [], "pictures that the page cannot show"
    for text in ("Cannot display an untrusted", "Error displaying widget", "Loading widget"):
        assert page.page.locator(".jp-Notebook").get_by_text(text).count() == 0, text


AT_ITS_END = """slider => slider.type === 'range' ? slider.value === slider.max
    : Number(slider.ariaValueNow) >= Number(slider.ariaValueMax)"""


def _move_sliders(page: LabPage) -> None:
    """A press of → (or ← at its end) on the first slider of each interactive figure; it answers without an error."""
    for number, cell in enumerate(page.code_cells()):
        if "interactive" not in cell["metadata"].get("tags", []):
            continue
        shown = page.page.locator(".jp-Notebook .jp-CodeCell").nth(number)
        shown.scroll_into_view_if_needed()
        slider = shown.locator("[role=slider], input[type=range]").first
        expect(slider).to_be_visible(timeout=60_000)
        says = (
            "aria-valuenow" if slider.get_attribute("role") else "aria-valuetext"
        )  # a widget's, or one of draw.series
        before = slider.get_attribute(says)
        slider.focus()
        page.page.keyboard.press("ArrowLeft" if slider.evaluate(AT_ITS_END) else "ArrowRight")
        expect(slider).not_to_have_attribute(says, before or "")
        page.wait_for_kernel()
        expect(shown.locator("[data-mime-type*='error'], [data-mime-type*='stderr']")).to_have_count(0)


def _cells_for_the_slider(page: LabPage) -> list[int]:
    """The interactive figure's cell, and those before it that define what it uses."""
    sources = [(cell["metadata"].get("tags", []), "".join(cell["source"])) for cell in page.code_cells()]
    [figure] = [number for number, (tags, _) in enumerate(sources) if "interactive" in tags]
    chosen, wanted = [], set()
    for number in range(figure, -1, -1):
        source = sources[number][1]
        if source.startswith("%%") or "%ranks" in source:
            continue
        tree = ast.parse("\n".join(line for line in source.splitlines() if not line.startswith(("%", "!"))))
        nodes = list(ast.walk(tree))
        made = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        made |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        made |= {(node.asname or node.name).split(".")[0] for node in nodes if isinstance(node, ast.alias)}
        if number == figure or made & wanted:
            chosen.insert(0, number)
            wanted = (wanted - made) | {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return chosen


# (Of what lectures store there are few kinds; each night JupyterLab shows them all.)
SHOWN = [pytest.param(name, marks=[pytest.mark.nightly] * (number % 4 > 0)) for number, name in enumerate(LECTURES[1:])]


@pytest.mark.parametrize("name", SHOWN)
def test_a_lecture_shows_what_is_stored(name: str, open_page: Any) -> None:
    page = open_page(f"notebooks/{name}", own_kernel=False)
    _take_pictures(page, name.removesuffix(".ipynb"))
    _assert_pictures_are_seen(page)
    assert page.problems == []
    assert page.blocked == [], "the notebook asks for something on the internet"


def test_the_first_lecture_runs_from_top_to_bottom(open_page: Any) -> None:
    page = open_page(f"notebooks/{FIRST}")
    page.run_all()
    page.wait_until_run(LECTURE_SECONDS)
    _take_pictures(page, "first")
    _assert_only_errors_that_were_meant(page)
    counts = [cell["execution_count"] for cell in page.code_cells() if "".join(cell["source"]).strip()]
    assert counts == list(range(1, len(counts) + 1))
    labels = _assert_ranks_in_order(page)
    stored = [seen_text(output) for cell in _stored_ranks_cells(FIRST) for output in cell.get("outputs", [])]
    assert labels > 0 or not "".join(stored).strip(), "the stored notebook shows what ranks printed, the page does not"
    _assert_pictures_are_seen(page)
    _move_sliders(page)
    assert page.problems == []
    assert page.blocked == [], "the notebook asks for something on the internet"


def test_the_sliders_of_the_second_lecture_answer(open_page: Any, server: LabServer) -> None:
    # (A copy: widgets of a notebook that this window has shown before, with another kernel, are not found again.)
    shutil.copy(server.folder / "notebooks" / SECOND, server.folder / "notebooks" / "sliders.ipynb")
    page = open_page("notebooks/sliders.ipynb")
    chosen = _cells_for_the_slider(page)
    for number in chosen:
        page.run_cell(number)
    page.wait_for_text(chosen[-1], "pictures to choose from")
    _move_sliders(page)
    assert page.problems == [] and page.blocked == []


def test_what_would_be_wrong_is_found(open_page: Any) -> None:
    """The other tests' eyes are open: a cell that fails, and a picture from the internet."""
    page = open_page(
        "notebooks/wrong.ipynb",
        new_markdown_cell("![far away](https://far-away.invalid/x.png)"),
        new_code_cell("1 / 0"),
        new_code_cell("never = 1"),
    )
    page.run_all()
    page.wait_until_run()
    with pytest.raises(AssertionError, match="code cell 1 failed"):
        _assert_only_errors_that_were_meant(page)
    with pytest.raises(AssertionError, match="far away"):
        _assert_pictures_are_seen(page)
    assert page.blocked == ["https://far-away.invalid/x.png"]


def test_what_ranks_show_in_jupyterlab(open_page: Any) -> None:
    page = open_page(
        "notebooks/what_ranks_show.ipynb",
        new_markdown_cell("# What ranks show"),
        new_code_cell("%load_ext utils"),
        new_code_cell(
            "%%ranks -n 4\nx = torch.tensor([rank])\nprint('I am', rank)\nprint('all alike')\ndist.all_reduce(x)\nx"
        ),
        new_code_cell(
            "%%ranks\nimport matplotlib.pyplot as plt\nif rank == 1:\n    plt.plot([1, 2, 3])\n    plt.show()"
        ),
        new_code_cell(
            "%%ranks\nimport time\nfrom tqdm.auto import tqdm\nfor i in tqdm(range(20)):\n    time.sleep(0.05)"
        ),
        new_code_cell(
            "%%ranks\nif rank == 2:\n    raise ValueError('wrong on purpose')\ndist.barrier()", metadata=MEANT
        ),
        new_code_cell(
            "import ipywidgets\n\n@ipywidgets.interact(n=ipywidgets.IntSlider(4, 1, 8))\n"
            "def show(n):\n    print('n is', n)",
            metadata={"tags": ["interactive"]},
        ),
        new_code_cell("%%ranks\nint(x) + rank"),
        new_code_cell("%ranks"),
    )
    page.run_all()
    page.wait_until_run()
    _take_pictures(page, "what_ranks_show")
    _assert_only_errors_that_were_meant(page)
    assert _assert_ranks_in_order(page) > 8
    _assert_pictures_are_seen(page)
    assert page.text_of(1).splitlines() == [
        "rank 0: I am 0",
        "rank 0: all alike",
        "rank 1: I am 1",
        "rank 1: all alike",
        "rank 2: I am 2",
        "rank 2: all alike",
        "rank 3: I am 3",
        "rank 3: all alike",
        "",
        "ranks 0–3: tensor([6])",
    ]
    figure = page.code_cells()[2]["outputs"]
    assert seen_text(figure[0]) == "rank 1:\n" and "image/png" in figure[1]["data"]
    # One line per rank is left of a progress bar, not twenty (and one line for ranks that were as fast, to the digit).
    bars = [line for line in page.text_of(3).splitlines() if line]
    assert 1 <= len(bars) <= 4 and all(re.match(r"ranks? \d.*: 100%.* 20/20 ", bar) for bar in bars), bars
    assert "RankError: rank 2 failed: ValueError: wrong on purpose" in page.text_of(4)
    assert "rank 3: 9" in page.text_of(6), "variables live on after another cell's error"
    _move_sliders(page)
    expect(page.page.locator(".jp-Notebook").get_by_text("n is 5")).to_be_visible()
    assert "4 ranks, backend" in page.text_of(7)
    assert page.problems == [] and page.blocked == []


def test_output_appears_while_the_cell_runs_and_the_stop_button_stops_it(open_page: Any) -> None:
    page = open_page(
        "notebooks/stop.ipynb",
        new_code_cell("%load_ext utils"),
        new_code_cell("%%ranks -n 4\nkept = rank * 100\nworld_size"),
        new_code_cell(
            "%%ranks\nimport time\n"
            "if rank == 3:\n    dist.barrier()\n"
            "for step in range(1000):\n    print('step', step)\n    time.sleep(0.2)"
        ),
        new_code_cell("%%ranks\nprint('the next cell works')\nkept"),
    )
    for number in (0, 1):
        page.run_cell(number)
        page.wait_for_kernel()
    page.wait_for_text(1, "ranks 0–3: 4")
    page.run_cell(2)
    page.wait_for_text(2, "step 5")
    assert page.kernel_status() == "busy", "what was printed should be there while the cell still runs"
    _take_pictures(page, "stop-live", most=1)
    page.press_stop()
    shown = page.wait_for_text(2, "RanksInterrupted")
    page.wait_for_kernel()
    _take_pictures(page, "stop-table")
    assert re.search(r"^rank +state +line +code$", shown, re.MULTILINE), shown
    assert re.search(r"^0 +(busy|waiting) +\d+ +time\.sleep\(0\.2\)$", shown, re.MULTILINE), shown
    assert re.search(r"^3 +waiting in barrier +\d+ +dist\.barrier\(\)$", shown, re.MULTILINE), shown
    page.run_cell(3)
    shown = page.wait_for_text(3, "rank 3: 300")
    assert "ranks 0–3: the next cell works" in shown


def test_restarting_the_kernel_leaves_no_rank_behind(open_page: Any, server: LabServer) -> None:
    others = server.processes()
    page = open_page(
        "notebooks/restart.ipynb",
        new_code_cell("%load_ext utils"),
        new_code_cell("%%ranks -n 4\nimport os\nos.getpid()"),
    )
    page.run_cell(0)
    page.run_cell(1)
    shown = page.wait_for_text(1, "rank 3:")
    ranks = {int(pid) for pid in re.findall(r"^rank \d: (\d+)$", shown, re.MULTILINE)}
    former = [process for process in server.processes() if process not in others]
    assert len(ranks) == 4 and ranks < {process.pid for process in former}
    page.restart_kernel()
    left = still_alive(former, 60)
    assert left == [], "the former kernel and all it started should have ended"
    page.wait_for_kernel()
    page.run_cell(0)
    page.run_cell(1)
    end = time.monotonic() + 120
    while ranks & {int(pid) for pid in re.findall(r"^rank \d: (\d+)$", page.text_of(1), re.MULTILINE)}:
        assert time.monotonic() < end, "the cell did not run again"
        time.sleep(0.1)
    page.wait_for_text(1, "rank 3:")
