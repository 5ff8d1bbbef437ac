"""The README: as long as a page, and what stands there to be pasted works as it stands there."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from kernel_support import Kernel

from course import outline, readme

TEXT = (outline.ROOT / "README.md").read_text(encoding="utf-8")
CELL = re.compile(r"^```python\n(%%ranks.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
CELLS = CELL.findall(TEXT)
OTHER_CODE = re.findall(r"^```(?!python|text)(\w+)$", TEXT, re.MULTILINE)


def words(text: str) -> int:
    """Words of a text, without code, the table that is generated, and addresses of links."""
    text = re.sub(f"{re.escape(readme.BEGIN)}.*?{re.escape(readme.END)}", "", text, flags=re.DOTALL)
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return len(re.findall(r"\w[\w'’.-]*", re.sub(r"\]\([^)]*\)", "]", text)))


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    with Kernel() as running:
        assert running.text("%load_ext utils").strip() == ""
        yield running


def test_it_is_a_page() -> None:
    assert 1200 <= words(TEXT) <= 1500
    code = f"{readme.BEGIN}\n| a table |\n{readme.END}\n```\ncode and code\n```\nthree [words](only/not.this)\n"
    assert words(code) == 2


def test_it_has_two_cells_and_no_code_that_is_not_tried() -> None:
    assert [cell.splitlines()[0] for cell, _ in CELLS] == ["%%ranks -n 4", "%%ranks -n 4 --gpu H100 --shapes"]
    assert TEXT.count("```python") == len(CELLS) and all(output for _, output in CELLS) and OTHER_CODE == []


@pytest.mark.parametrize("number", range(len(CELLS)))
def test_cells_run_as_they_stand_there_and_show_what_is_shown(kernel: Kernel, number: int) -> None:
    cell, output = CELLS[number]
    shown = kernel.text(cell, 240)
    assert shown.strip().splitlines()[-len(output.splitlines()) :] == output.splitlines(), shown
    assert "Error" not in shown


def test_code_on_the_page_of_simulated_gpus_runs_as_it_stands_there(kernel: Kernel) -> None:
    page = (outline.ROOT / "docs/simulated_gpus.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    with_gpus_of_its_own, on_ranks = (kernel.text(block, 240) for block in blocks)
    assert "picture: Timeline" in with_gpus_of_its_own and "Error" not in on_ranks


def test_the_hours_and_the_short_path_come_from_the_notebooks() -> None:
    course = outline.lectures()
    assert all(one.minutes for one in course) and all(bool(one.lab_minutes) == one.lab for one in course)
    assert set(readme.WEEKEND) <= {one.slug for one in course}
    lectures, labs = (round(sum(getattr(one, key) for one in course) / 60) for key in ("minutes", "lab_minutes"))
    assert f"That is {lectures} hours of lectures and {labs} hours of labs." in TEXT


@pytest.mark.parametrize("name", ["utils", "simgpu", "checks", "lessons", "course"])
def test_a_learners_file_that_hides_a_package_is_in_the_troubleshooting(name: str) -> None:
    table = TEXT.split("## When something fails")[1]
    assert f"`{name}.py`" in table


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`make ([a-z-]+)", TEXT))))
def test_what_it_tells_to_make_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (outline.ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
