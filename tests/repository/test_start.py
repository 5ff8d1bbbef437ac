"""scripts/start.py: what it decides, and the one cell in a fresh kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import nbformat
import pytest
from course_copy import copy_course

from course import anywhere
from course.outline import ROOT

_spec = spec_from_file_location("start", ROOT / "scripts" / "start.py")
start = module_from_spec(_spec)
_spec.loader.exec_module(start)
LOCK = "numpy==2.4.6\ntorch==2.13.0\ntorchvision==0.28.0\n"
ASKED = ["torch>=2.9,<2.15", "numpy>=2.0,<3", "ipython>=9.0,<10", "tqdm>=4.67"]
FITTING = {"torch": "2.13.0+cpu", "numpy": "2.4.6", "ipython": "9.1", "tqdm": "4.70"}


@pytest.mark.parametrize("version", [(3, 10, 4), (3, 15, 0)])
def test_a_python_that_does_not_fit_is_told_which_do(version: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", version)
    with pytest.raises(SystemExit, match=r"3\.11 to 3\.14: choose a kernel"):
        start.main()


@pytest.mark.parametrize(
    ("there", "loaded", "wanted", "said"),
    [
        ({}, set(), [], ""),
        (dict.fromkeys(FITTING), set(), ["torch==2.13.0", "numpy==2.4.6", "ipython<10,>=9.0", "tqdm>=4.67"], ""),
        ({"tqdm": "4.1"}, set(), ["tqdm>=4.67"], ""),
        ({"tqdm": "4.1"}, {"tqdm"}, [], "tqdm 4.1 is older"),
        ({"ipython": "7.34.0"}, set(), [], "ipython 7.34.0 is older"),
        ({"numpy": "3.1", "torch": "2.9.1"}, set(), [], ""),
        ({"torch": "2.99.0"}, set(), [], "torch 2.99.0 is not one that the course was tested with"),
    ],
)
def test_what_is_missing_is_added_as_tested_and_what_is_there_stays_unless_it_is_too_old_and_not_in_use(
    there: dict[str, str | None], loaded: set[str], wanted: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "installed", (FITTING | there).get)
    to_add, sentences = start.decide(ASKED, loaded, LOCK)
    assert to_add == wanted
    assert [said] == [sentence[: len(said)] for sentence in sentences] if said else sentences == []


def test_a_torch_that_is_too_old_is_left_to_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "installed", (FITTING | {"torch": "2.6.0"}).get)
    with pytest.raises(SystemExit, match=r"torch 2\.6\.0 is too old .* restart the kernel"):
        start.decide(ASKED, set(), LOCK)


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("/usr/bin/python: No module named pip", "ensurepip"),
        ("error: externally-managed-environment\n\n× This environment …", "venv"),
        ("ERROR: No matching distribution found for tqdm", "No matching distribution found for tqdm. Has this machine"),
    ],
)
def test_when_pip_refuses_a_sentence_says_what_to_do(printed: str, said: str) -> None:
    assert said in start.sorry(printed, ["tqdm>=4.67"])


def test_the_course_is_found_by_a_line_beside_the_packages_or_in_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")  # no folder can be made below it
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "file" / "packages"))
    monkeypatch.setattr(start.site, "ENABLE_USER_SITE", True)
    monkeypatch.setattr(start.site, "getusersitepackages", lambda: str(tmp_path / "home" / "packages"))
    (written := tmp_path / "home" / "packages" / "many_gpus_course.pth")
    assert str(written) in start.register() and written.read_text() == f"{ROOT}\n"
    monkeypatch.setattr(start.site, "ENABLE_USER_SITE", False)
    assert "needs this cell first" in start.register()


def test_gpus_are_counted_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert start.gpus() == 0
    lines = "GPU 0: Tesla T4 (UUID: GPU-1)", "  MIG 1g.5gb Device 0: (UUID: MIG-1)", "GPU 1: Tesla T4 (UUID: GPU-2)"
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert start.gpus() == 2


RUN = """
import nbformat, sys
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": "."}}).execute()
nbformat.write(notebook, sys.argv[1])
"""


@pytest.mark.extras
def test_one_cell_starts_the_course_twice_and_a_later_notebook_finds_it(tmp_path: Path) -> None:
    """In an environment of its own, which sees this one's packages; the repository is cloned from a folder."""
    if shutil.which("git") is None:
        pytest.skip("git is not here")
    repository = copy_course(tmp_path / "repository", "utils", "simgpu", "course", "lessons", "notebooks", "scripts")
    shutil.copy(ROOT / "requirements.lock", repository)
    own = ["-c", "user.name=one", "-c", "user.email=one@example.org"]
    for command in (["init", "--quiet"], ["add", "--all"], [*own, "commit", "--quiet", "--message", "all"]):
        subprocess.run(["git", *command], cwd=repository, check=True, timeout=60)
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=60)
    packages = next(venv.glob("lib/*/site-packages"))
    packages.joinpath("others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    cell = anywhere.CELL.format(address=repository.as_uri())
    (work := tmp_path / "work").mkdir()

    def run(*sources: str) -> list[str]:
        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), work / "one.ipynb")
        command = [venv / "bin" / "python", "-c", RUN, "one.ipynb"]
        subprocess.run(command, cwd=work, env=_environment(), check=True, timeout=240)
        return [str(cell.outputs) for cell in nbformat.read(work / "one.ipynb", as_version=4).cells]

    first, second, where = run(cell, cell, "import os, utils\nprint(os.getcwd(), utils.__file__)")
    for said in (first, second):
        assert "tensor([6])" in said and "The course works here" in said
    course = work / "many-gpus"
    assert str(course / "notebooks") in where and str(course / "utils") in where
    assert packages.joinpath("many_gpus_course.pth").read_text() == f"{course}\n"
    (later,) = run("%load_ext utils\nimport utils\nprint(utils.__file__)")
    assert str(course / "utils") in later
    program = subprocess.run(
        [venv / "bin" / "python", course / "scripts" / "start.py"],
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "rank 3: tensor([6])" in program.stdout and "The course works here" in program.stdout


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
