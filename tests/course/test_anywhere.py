"""The course away from its repository: notebooks that fetch it, and a wheel that brings it along."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import nbformat
import pytest
from course_copy import copy_course

from course import anywhere, outline
from course.__main__ import main
from course.build import LabError

ADDRESS = "https://github.com/someone/course"
FOLDERS = ("notebooks", "labs", "solutions", "scripts", "docs")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("anywhere")
    assert main(["anywhere", str(folder), ADDRESS + "/"]) == 0
    return folder


def test_every_notebook_is_there_and_begins_with_the_cell_that_fetches_the_course(written: Path) -> None:
    there = sorted(path.relative_to(written) for path in written.rglob("*") if path.is_file())
    wanted = [path.relative_to(outline.ROOT) for folder in FOLDERS[:3] for path in _notebooks(outline.ROOT / folder)]
    assert there == sorted(wanted)
    for name in there:
        notebook = json.loads((written / name).read_text(encoding="utf-8"))
        (words, cell), notebook["cells"] = notebook["cells"][:2], notebook["cells"][2:]
        assert words["cell_type"] == "markdown" and ADDRESS in "".join(words["source"])
        assert "".join(cell["source"]) == anywhere.CELL.format(address=ADDRESS) and not cell["outputs"]
        assert notebook == json.loads((outline.ROOT / name).read_text(encoding="utf-8"))
    nbformat.validate(nbformat.read(written / there[0], as_version=4))


def test_pages_and_start_py_show_the_same_cell() -> None:
    lines = anywhere.CELL.splitlines()
    for name in ("scripts/start.py", "docs/anywhere.md", "README.md"):
        text = (outline.ROOT / name).read_text(encoding="utf-8")
        address = "ADDRESS_OF_THIS_REPOSITORY" if name == "README.md" else "https://github.com/OWNER/NAME"
        for line in lines:
            assert f"{line.format(address=address)}\n" in text, f"{name} does not have the line {line}"


def test_files_go_into_a_new_folder_and_replace_nothing(tmp_path: Path) -> None:
    files, folder = tmp_path / "files", tmp_path / "many-gpus"
    (files / "labs").mkdir(parents=True)
    (files / "labs" / "one.ipynb").write_text("new")
    said = anywhere.get(folder, files)
    assert (folder / "labs" / "one.ipynb").read_text() == "new" and f"cd {folder}" in said
    (folder / "labs" / "one.ipynb").write_text("an answer")
    with pytest.raises(LabError, match="there already, and nothing in it is replaced"):
        anywhere.get(folder, files)
    assert (folder / "labs" / "one.ipynb").read_text() == "an answer"


def test_in_a_clone_the_files_are_there_already(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["get", str(tmp_path / "many-gpus")]) == 2
    assert "are here already" in capsys.readouterr().err and not (tmp_path / "many-gpus").exists()


@pytest.mark.extras
def test_a_wheel_brings_the_files_and_everything_that_packages_read(tmp_path: Path) -> None:
    """As `pip install` of the repository's address makes it; then from it alone: get, the outline, references."""
    copy = copy_course(tmp_path / "copy", *FOLDERS, "utils", "simgpu", "checks", "lessons", "course")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*pip, "-w", tmp_path, copy], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    for package in ("utils", "simgpu", "checks", "lessons", "course"):
        for path in (copy / package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert (site / path.relative_to(copy)).exists(), f"the wheel lacks {path.relative_to(copy)}"
    program = (
        "import json; from course import outline; from course.__main__ import main;"
        "from checks.engine.reference import FOLDER;"
        "assert main(['get', 'many-gpus']) == 0;"
        "print(json.dumps([str(outline.ROOT), len(outline.lectures()), len(list(FOLDER.glob('*.py')))]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    root, lectures, references = json.loads(done.stdout.splitlines()[-1])
    assert root == str(site) and lectures == len(outline.lectures()) and references > 20
    for folder in FOLDERS:
        for path in (outline.ROOT / folder).rglob("*"):
            if path.suffix in (".ipynb", ".py", ".sbatch", ".md", ".txt") and "." not in path.parent.name:
                there = tmp_path / "many-gpus" / path.relative_to(outline.ROOT)
                assert there.read_bytes() == path.read_bytes()


def _notebooks(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*.ipynb") if outline.FILE_NAME.fullmatch(path.name)]
