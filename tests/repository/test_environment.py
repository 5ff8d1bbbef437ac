"""The ways into the course (make, conda, a development container, CI) lead to one place, and name no version twice."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
TARGETS = (
    *(
        "setup",
        "lab",
        "test",
        "lint",
        "tests",
        "notebooks",
        "frameworks",
        "test-frameworks",
        "execute",
        "labs",
        "grade",
    ),
    *("benchmarks", "help"),
)
# In pieces, so that this file does not name them.
REGISTRIES = (
    "pypi" + ".org",
    "python" + "hosted",
    "download." + "pytorch",
    "conda." + "anaconda",
    "repo." + "anaconda",
    "registry." + "npmjs",
)


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _project() -> dict[str, Any]:
    return tomllib.loads(_text("pyproject.toml"))["project"]


def _files() -> list[Path]:
    """Files of the repository: tracked, or new and not ignored."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout, so which files belong to the repository is unknown")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def _texts() -> list[tuple[str, str]]:
    texts = []
    for path in _files():
        try:
            texts.append((path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue
    return texts


def _dry_run(target: str) -> subprocess.CompletedProcess[str]:
    """What make would do. A make that runs these tests must not pass its own options on."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "--dry-run", "--no-print-directory", target]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_conda_gets_python_pip_and_this_project_and_nothing_else() -> None:
    environment = yaml.safe_load(_text("environment.yml"))
    assert environment["name"] == _project()["name"]
    python, pip, by_pip = environment["dependencies"]
    assert python == "python" + _project()["requires-python"]
    assert pip == "pip"
    assert by_pip == {"pip": ["-e .[test]"]}


def test_what_stored_outputs_depend_on_is_pinned_exactly() -> None:
    project = _project()
    pinned = {
        re.split(r"[=\[]", one)[0]
        for one in [*project["dependencies"], *project["optional-dependencies"]["test"]]
        if re.fullmatch(r"[\w.-]+==\d+(\.\d+)+", one)
    }
    assert {"torch", "numpy", "scikit-learn", "matplotlib", "ipywidgets", "nbval", "ruff"} <= pinned


@pytest.mark.parametrize(
    "name",
    ["README.md", "CONTRIBUTING.md", "Makefile", "environment.yml", ".ci/run", ".devcontainer/devcontainer.json"],
)
def test_versions_of_packages_live_in_pyproject_only(name: str) -> None:
    specifications = re.findall(r"\b([A-Za-z][\w.-]*)(?:\[[\w,]+\])?\s*(?:===?|~=|>=|<=|!=)\s*v?\d[\w.]*", _text(name))
    assert set(specifications) <= {"python"}, "packages with a version outside pyproject.toml"


@pytest.mark.parametrize("target", TARGETS)
def test_make_has_its_targets(target: str) -> None:
    done = _dry_run(target)
    assert done.returncode == 0, done.stderr


def test_make_lab_opens_the_first_lecture_and_make_test_runs_everything() -> None:
    assert re.search(r"jupyter lab .*notebooks/00_start_here\.ipynb", _dry_run("lab").stdout)
    tested = _dry_run("test").stdout
    for part in ("ruff format --check", "ruff check", " tests"):
        assert part in tested, part
    assert not re.search("horovod|ray|tensorflow|other_frameworks", tested.replace("array", "")), (
        "the core stands by itself"
    )


def test_every_notebook_is_executed_by_a_target_strict_but_for_labs() -> None:
    commands = (_dry_run("test").stdout + _dry_run("test-frameworks").stdout).replace("\\\n", " ").splitlines()
    executed = [
        (path, "lax" if "--nbval-lax" in command else "strict")
        for command in commands
        if "--nbval-current-env" in command
        for path in re.findall(r"\S+\.ipynb", command)
    ]
    there = [path.relative_to(ROOT) for path in ROOT.glob("*/[0-9][0-9]_*.ipynb")]
    wanted = {(path.as_posix(), "lax" if path.parts[0] == "labs" else "strict") for path in there}
    assert wanted <= set(executed) and len(executed) == len(set(executed))


def test_make_help_explains_every_target() -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(["make", "help"], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    explained = {line.split()[0] for line in done.stdout.splitlines() if line.strip()}
    assert set(TARGETS) - {"help"} <= explained


def test_ci_runs_what_a_newcomer_runs() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert re.search(r"^make test$.*^make test-frameworks$", _text(".ci/run"), re.MULTILINE | re.DOTALL)
    subprocess.run(["bash", "-n", ".ci/run"], cwd=ROOT, check=True)
    steps = yaml.safe_load(_text(".github/workflows/ci.yml"))["jobs"]["test"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == [".ci/run"]


def test_the_development_container_is_set_up_by_make() -> None:
    container = json.loads(_text(".devcontainer/devcontainer.json"))
    assert container["postCreateCommand"] == "make setup"
    assert 8888 in container["forwardPorts"]
    python = re.search(r"python:\d+-(\d+)\.(\d+)", container["image"])
    assert python is not None and (int(python[1]), int(python[2])) >= (3, 11)


def test_no_file_names_a_package_registry() -> None:
    named = [(name, host) for name, text in _texts() for host in REGISTRIES if host in text.lower()]
    assert named == []


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    """Tests may: they make up such paths to see that they are found."""
    found = []
    for name, text in _texts():
        pattern = re.escape(str(ROOT)) + r"(?![\w-])"
        if not name.startswith("tests/"):
            pattern += r"|(?<![\w.:/])/(?:home|Users|root|work)/\w+|[A-Za-z]:\\+Users\\+\w+"
        if match := re.search(pattern, re.sub(r"base64,[A-Za-z0-9+/=]+", "", text)):
            found.append((name, match[0]))
    assert found == []


def test_there_is_a_licence() -> None:
    assert _project()["license"] == "MIT"
    assert _text("LICENSE").startswith("MIT License")
