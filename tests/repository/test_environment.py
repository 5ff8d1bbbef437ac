"""The ways into the course (make, conda, a development container, CI) lead to one place, and name no version twice."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
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


def _make(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A make that runs these tests must not pass its own options and variables on."""
    own = ("MAKE", "MFLAGS", "AGAIN")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(own)}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment | variables, capture_output=True, text=True, timeout=60, check=False
    )


def _dry_run(target: str) -> str:
    """What make would do, and its stages."""
    done = _make("--dry-run", *shlex.split(target))
    assert done.returncode == 0, done.stderr
    stages = re.search(r"tests/stages (.+)", done.stdout)
    return done.stdout + "".join(_dry_run(stage) for stage in (shlex.split(stages[1]) if stages else ()))


def _python_bounds() -> tuple[tuple[int, int], tuple[int, int]]:
    """The oldest version of Python that fits, and the first that does not."""
    bounds = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", _project()["requires-python"])
    assert bounds is not None
    return (3, int(bounds[1])), (3, int(bounds[2]))


def _locked() -> dict[str, str]:
    """What the lock says for this machine: some packages have a version for each kind of machine or Python."""
    lines = [Requirement(line) for line in _text("requirements.lock").splitlines() if not line.startswith("#")]
    return {one.name: str(one.specifier)[2:] for one in lines if one.marker is None or one.marker.evaluate()}


def _groups() -> dict[str, list[str]]:
    return tomllib.loads(_text("pyproject.toml"))["dependency-groups"]


def test_conda_gets_python_pip_and_this_project_and_nothing_else() -> None:
    environment = yaml.safe_load(_text("environment.yml"))
    assert environment["name"] == _project()["name"]
    python, pip, by_pip = environment["dependencies"]
    assert python == "python" + _project()["requires-python"]
    assert pip == "pip"
    assert by_pip == {"pip": ["-c requirements.lock", "-e .[lab]"]}


def test_the_course_installs_beside_other_versions_and_what_judges_it_is_pinned() -> None:
    """What stored outputs depend on stands in the lock; an exact version here would replace what a hub has."""
    asked = [Requirement(one) for one in _project()["dependencies"]]
    assert [str(one) for one in asked if any(clause.operator in ("==", "===") for clause in one.specifier)] == []
    assert {"jupyterlab", "notebook"}.isdisjoint(one.name for one in asked), "a hub has one: it belongs to [lab]"
    # Colab in August 2026 (googlecolab/backend-info on GitHub); Kaggle's image is built on Colab's.
    colab = {"torch": "2.11.0", "numpy": "2.1.3", "scikit-learn": "1.6.1", "matplotlib": "3.10.0", "ipython": "7.34.0"}
    colab |= {"ipykernel": "6.17.1", "ipywidgets": "7.7.1", "cloudpickle": "3.1.2", "psutil": "5.9.5", "tqdm": "4.67.3"}
    colab |= {"nvidia-ml-py": "13.610.43"}
    assert [str(one) for one in asked if colab[one.name] not in one.specifier] == []
    pinned = {one.name for one in map(Requirement, _groups()["test"]) if re.fullmatch(r"==[\d.]+", str(one.specifier))}
    assert {"nbval", "ruff", "mypy"} <= pinned


@pytest.mark.parametrize(
    "name",
    ["README.md", "CONTRIBUTING.md", "Makefile", "environment.yml", ".ci/run", ".devcontainer/devcontainer.json"],
)
def test_versions_of_packages_live_in_pyproject_only(name: str) -> None:
    specifications = re.findall(r"\b([A-Za-z][\w.-]*)(?:\[[\w,]+\])?\s*(?:===?|~=|>=|<=|!=)\s*v?\d[\w.]*", _text(name))
    assert set(specifications) <= {"python"}, "packages with a version outside pyproject.toml"


def test_what_make_runs() -> None:
    """CI runs every notebook, and what it leaves to the night runs each night."""
    tested, everything = _dry_run("test"), _dry_run("test-all")
    for part in ("ruff format --check", "ruff check", "mypy", '-m "not frameworks and not extras and not nightly"'):
        assert part in tested, part
    assert not re.search("horovod|tensorflow|other_frameworks", tested), "the core stands by itself"
    executed = [
        path
        for line in everything.replace("\\\n", " ").splitlines()
        if " --nbval " in line
        for path in re.findall(r"\S+\.ipynb", line)
    ]
    there = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("*/[0-9][0-9]_*.ipynb")}
    assert set(executed) == {path for path in there if not path.startswith("labs/")}
    nightly = _text(".github/workflows/nightly.yml")
    assert re.search(r"cron:", nightly) and "run: make nightly " in nightly and "run: make answers " in nightly
    by_night = _dry_run("nightly")
    assert '-m "nightly and not frameworks"' in by_night and "--random-order-seed=" in by_night
    assert "MKL_CBWR=COMPATIBLE ATEN_CPU_CAPABILITY=default" in by_night


def test_make_help_explains_every_target() -> None:
    explained = {line.split()[0] for line in _make("help").stdout.splitlines() if line.strip()}
    (targets,) = re.findall(r"^\.PHONY:((?:.*\\\n)*.*)$", _text("Makefile"), re.MULTILINE)
    assert set(targets.replace("\\", " ").split()) - {"help"} <= explained


@pytest.mark.parametrize("version", [(3, 10), (3, 15)])
def test_make_says_which_python_it_needs_and_what_to_type(tmp_path: Path, version: tuple[int, int]) -> None:
    python = tmp_path / "python3.x"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'import sys; sys.version_info = {version}; '\"$2\"\n")
    python.chmod(0o755)
    done = _make("setup", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}")
    assert done.returncode == 2 and not (tmp_path / "venv").exists()
    (sentence,) = done.stdout.splitlines()
    oldest, first_that_does_not_fit = _python_bounds()
    assert f"Python {oldest[0]}.{oldest[1]} to 3.{first_that_does_not_fit[1] - 1}" in sentence
    assert str(python) in sentence and "type: make setup PYTHON=python3.1" in sentence


@pytest.mark.parametrize("fitting", ["python3.11", "python3.14"])
def test_make_finds_a_python_that_fits(tmp_path: Path, fitting: str) -> None:
    for name in ("python3", "python3.14", "python3.13", "python3.12", "python3.11"):
        (tmp_path / name).write_text(f"#!/bin/sh\n[ {name} = {fitting} ]\n")
        (tmp_path / name).chmod(0o755)
    done = _make("--dry-run", "setup", f"VENV={tmp_path / 'venv'}", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert f"{fitting} -m venv --upgrade-deps {tmp_path / 'venv'}" in done.stdout, done.stderr


def test_the_bounds_of_python_agree() -> None:
    oldest, first_that_does_not_fit = _python_bounds()
    assert f"not {oldest} <= sys.version_info < {first_that_does_not_fit})" in _text("Makefile")
    jobs = yaml.safe_load(_text(".github/workflows/ci.yml"))["jobs"]
    last = f"3.{first_that_does_not_fit[1] - 1}"
    assert jobs["test"]["strategy"]["matrix"]["python"] == [f"3.{oldest[1]}", last]
    for text, pattern in (
        (json.loads(_text(".devcontainer/devcontainer.json"))["image"], r"python:\d+-3\.(\d+)"),
        (_text(".binder/runtime.txt"), r"python-3\.(\d+)\n"),
    ):
        version = re.search(pattern, text)
        assert version is not None and oldest <= (3, int(version[1])) < first_that_does_not_fit


def test_setup_takes_what_was_tested_unless_the_newest_is_asked_for(tmp_path: Path) -> None:
    venv = f"VENV={tmp_path}"
    assert "--constraint requirements.lock" in _make("--dry-run", "setup", venv).stdout
    assert "--constraint" not in _make("--dry-run", "setup", venv, "LOCKED=").stdout


def test_the_lock_has_every_package_of_the_project_in_a_version_that_it_allows() -> None:
    """Run `make lock` when this fails. What it has beyond the project's own are the packages that those need."""
    locked, project = _locked(), _project()
    asked = [Requirement(one) for one in project["dependencies"]]
    asked += [Requirement(one) for extra in project["optional-dependencies"].values() for one in extra]
    asked += [
        Requirement(one)
        for name, group in _groups().items()
        if name not in ("lock", "packages", "traces")
        for one in group
    ]
    asked = [one for one in asked if one.marker is None or one.marker.evaluate()]
    assert len(asked) > 20
    for one in asked:
        assert locked[canonicalize_name(one.name)] in one.specifier, one
    assert not any("+" in version for version in locked.values()), "a build for one kind of machine"


def test_the_lock_is_what_this_environment_has() -> None:
    """Where it was made by `make setup`. (pip, and builds such as 2.13.0+cpu, are the machine's own.)"""
    if not (Path(sys.prefix) / ".ready").exists():
        pytest.skip("these tests do not run in an environment that `make setup` has made")
    locked = _locked()
    installed = {canonicalize_name(one.name): Version(one.version).public for one in distributions()}
    assert {name: version for name, version in installed.items() if locked.get(name, version) != version} == {}
    needed = {re.split(r"[^\w.-]", one)[0] for one in _project()["dependencies"]}
    assert {canonicalize_name(name) for name in needed} <= set(installed)


@pytest.mark.parametrize("system", ["linux", "darwin", "win32"])
def test_the_lock_names_each_package_once_for_each_kind_of_machine(system: str) -> None:
    """And no package of CUDA: torch asks for the version that it was built with."""
    lines = [Requirement(line) for line in _text("requirements.lock").splitlines() if not line.startswith("#")]
    here = [one.name for one in lines if one.marker is None or one.marker.evaluate({"sys_platform": system})]
    assert len(here) > 100 and len(set(here)) == len(here)
    assert {"tensorflow", "tensorflow-cpu"} & set(here) == {"tensorflow-cpu" if system == "linux" else "tensorflow"}
    assert [name for name in here if re.match("cuda|nvidia|triton", name)] == ["nvidia-ml-py"]


def test_ci_runs_what_a_newcomer_runs() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert re.search(r"^make test-all AGAIN=1$", _text(".ci/run"), re.MULTILINE)
    subprocess.run(["bash", "-n", ".ci/run"], cwd=ROOT, check=True)
    steps = yaml.safe_load(_text(".github/workflows/ci.yml"))["jobs"]["test"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == [".ci/run"]
    workflows = {path.stem: yaml.safe_load(path.read_text())["jobs"] for path in (ROOT / ".github/workflows").iterdir()}
    assert workflows["ci"]["macos"]["runs-on"].startswith("macos")
    assert workflows["platforms"]["wsl2"]["runs-on"].startswith("windows")
    waits_for_nothing = [
        name for jobs in workflows.values() for name, job in jobs.items() if "continue-on-error" in job
    ]
    assert waits_for_nothing == ["newest-torch"]
    # Whatever a workflow calls is there.
    commands = [step.get("run", "") for jobs in workflows.values() for job in jobs.values() for step in job["steps"]]
    for target in re.findall(r"make ([\w-]+)", "\n".join(commands)):
        assert _make("--dry-run", target).returncode == 0, target


@pytest.mark.parametrize("tests", [0, 3], ids=["tests pass", "tests fail"])
@pytest.mark.parametrize("apt", ["installs", "has no slurm", "needs root", "is not here"])
def test_ci_fails_when_something_was_left_out_and_says_so_at_its_end(tmp_path: Path, apt: str, tests: int) -> None:
    """On a machine with nothing but these programs, for a user who is not root."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, does in (
        ("id", "echo 1000"),
        ("sudo", "exit 1" if apt == "needs root" else "shift; exec $*"),
        ("apt-get", "[ $1 = update ] || case $* in *slurm*) exit 1;; esac" if apt == "has no slurm" else "exit 0"),
        ("make", f"case $* in *test-all*) echo making $*; exit {tests};; *) echo the table of sizes;; esac"),
    ):
        if name != "apt-get" or apt != "is not here":
            (programs / name).write_text(f"#!/bin/sh\n{does}\n")
            (programs / name).chmod(0o755)
    for name in ("sh", "bash", "dirname", "env", "true"):
        (programs / name).symlink_to(shutil.which(name))
    run = tmp_path / ".ci" / "run"
    run.parent.mkdir()
    run.write_text(_text(".ci/run").replace("/usr/sbin/", f"{tmp_path}/sbin/"))  # (this machine may have them)
    done = subprocess.run(["bash", run], env={"PATH": str(programs)}, capture_output=True, text=True, check=False)
    making, sizes, *left_out = done.stdout.splitlines()
    assert (making, sizes) == ("making test-all AGAIN=1", "the table of sizes")
    slurm = "Left out: tests and cells with a Slurm cluster: "
    assert {
        "installs": [],
        "has no slurm": [slurm + "apt-get could not install slurm-wlm munge"],
        "needs root": [slurm + "slurmctld is not here, and this user is neither root nor allowed to use sudo"],
        "is not here": [slurm + "slurmctld is not here, and neither is apt-get"],
    }[apt] == [line for line in left_out if "Slurm" in line]
    assert len(left_out) == {"installs": 0, "has no slurm": 1}.get(apt, 3)
    assert done.returncode == (tests or bool(left_out)), done.stderr


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / ".github/workflows").iterdir()))
def test_every_action_is_pinned_by_its_commit_and_a_workflow_may_only_read(name: str) -> None:
    text = _text(f".github/workflows/{name}")
    workflow = yaml.safe_load(text)
    uses = re.findall(r"uses: (.*)", text)
    assert uses and [one for one in uses if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+(\.\d+)*", one)] == []
    assert workflow["permissions"] == {"contents": "read"} and workflow["concurrency"]["cancel-in-progress"] is True
    may_write = {
        (job, key)
        for job, what in workflow["jobs"].items()
        for key, may in what.get("permissions", {}).items()
        if may != "read"
    }
    writes = {  # of the book: its pages, and a branch of its own
        "book.yml": {("publish", "pages"), ("publish", "id-token"), ("anywhere", "contents")},
        "release.yml": {("pypi", "id-token"), ("github", "contents")},
    }
    assert may_write <= writes.get(name, set())
    assert all(0 < job["timeout-minutes"] <= 90 for job in workflow["jobs"].values())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    for setup in (step for step in steps if "setup-python" in step.get("uses", "")):
        assert setup["with"]["cache"] == "pip"
        assert all((ROOT / name).is_file() for name in setup["with"]["cache-dependency-path"].split())


def test_the_newest_version_in_the_changes_is_this_one_and_its_urls_are_placeholders_alike() -> None:
    released = re.findall(r"^## (\S+)", _text("docs/changelog.md"), re.MULTILINE)
    assert released[0] == "Unreleased" and released[1] == _project()["version"]
    (address,) = set(re.findall(r"https://github\.com/OWNER/NAME", _text("Makefile")))
    assert all(url.startswith(address) for url in _project()["urls"].values())
    assert [one["name"] for one in _project()["authors"]] == [
        one["name"] for one in yaml.safe_load(_text("CITATION.cff"))["authors"]
    ]


def test_make_clean_leaves_what_git_has_and_what_a_learner_has_and_nothing_else(tmp_path: Path) -> None:
    """Each thing that git ignores is made by make, a tool that it starts, or a learner."""
    ignored = [line.strip("/") for line in _text(".gitignore").splitlines() if line and not line.startswith("#")]
    theirs = {".progress.json", "mine", "your_gpus.json"}
    for name in ignored:
        path = tmp_path / ("some" + name[1:] if name.startswith("*") else name)
        path = tmp_path / "utils" / "ranks" / name if name in ("__pycache__", ".ipynb_checkpoints") else path
        if path.suffix in (".json", ".md"):
            path.write_text("")
        else:
            (path / "inside").mkdir(parents=True)
    kept = ["labs/one.ipynb", "docs/build.md", "publish/own.py", ".git/HEAD"]
    for name in kept:
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("")
    done = _make("clean", "--file", str(ROOT / "Makefile"), "--directory", str(tmp_path))
    assert done.returncode == 0, done.stderr
    left = {
        path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file() or path.name in ignored
    }
    assert left - {"utils", "utils/ranks"} == {*kept, *theirs}


def test_no_two_files_differ_in_capitals_only() -> None:
    """Where macOS and Windows keep files they would be one."""
    names = [path.relative_to(ROOT).as_posix() for path in _files()]
    assert sorted({name.lower() for name in names}) == sorted(name.lower() for name in names)


def test_no_file_names_a_package_registry() -> None:
    """But workflows and Binder that of torch, for its build for CPUs."""
    named = {(name, host) for name, text in _texts() for host in REGISTRIES if host in text.lower()}
    have_no_gpu = (".github/workflows/", ".binder/")
    torchs_own = {(name, host) for name, host in named if "pytorch" in host and name.startswith(have_no_gpu)}
    assert named - torchs_own == set()


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


def test_a_cell_finds_torchrun_of_its_own_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """``!torchrun`` in a kernel that nobody started from an activated environment."""
    import utils
    from utils.ranks import magics

    monkeypatch.setattr(magics, "load", lambda shell: None)
    monkeypatch.setenv("PATH", "/usr/bin")
    utils.load_ipython_extension(None)
    assert shutil.which("torchrun") == str(Path(sys.executable).with_name("torchrun"))
    before = os.environ["PATH"]
    utils.load_ipython_extension(None)
    assert os.environ["PATH"] == before, "a second time changes nothing"
