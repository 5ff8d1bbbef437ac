"""What goes to PyPI (publish/packages.py): made from the course's sources, and of use without the course."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from argparse import Namespace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from packaging.requirements import Requirement

from course.outline import ROOT
from utils.ranks import BadRequest
from utils.simulated import PROVIDER

IMPORTED_AS = {"cloudpickle": "cloudpickle", "psutil": "psutil", "pynvml": "nvidia-ml-py", "numpy": "numpy"}
LATER = {"IPython", "matplotlib", "tqdm", "PIL"}
"""What only those import who have it: a notebook, charts."""


def _builder() -> ModuleType:
    spec = spec_from_file_location("packages_build", ROOT / "publish" / "packages.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build = _builder()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for name in build.NAMES:
        build.write_sources(name, folder / name)
    return folder


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("from utils.ranks import starters", "from ranks import starters"),
        ("from utils.hardware.nvml import count_gpus", "from ranks.nvml import count_gpus"),
        ("type %load_ext utils", "type %load_ext ranks"),
        ("from utils import draw", "from simgpu import draw"),
        ("from utils.hardware import links", "from simgpu.hardware import links"),
        ("see ``utils.draw.timeline.Span``", "see ``simgpu.draw.timeline.Span``"),
        *[(other, other) for other in ("torch.utils.data", "nn.utils", "_utils", "/torch/utils/_device")],
    ],
)
def test_names_of_modules_change_and_no_others(text: str, becomes: str) -> None:
    assert build.renamed(text) == becomes


@pytest.mark.parametrize("name", build.NAMES)
def test_a_package_imports_itself_torch_and_what_it_asks_for(name: str, sources: Path) -> None:
    project = tomllib.loads((sources / name / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    imported = set()
    for path in (sources / name).rglob("*.py"):
        code = path.read_text(encoding="utf-8")
        compile(code, path, "exec")
        imported |= set(re.findall(r"^\s*(?:from|import) (\w+)", re.sub(r'""".*?"""', "", code, flags=re.DOTALL), re.M))
    needed = {Requirement(one).name for one in project["dependencies"]}
    asked = {IMPORTED_AS.get(one, one) for one in imported - set(sys.stdlib_module_names) - {name, *LATER}}
    assert asked == needed
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert project["version"] == version
    assert [one.partition("==")[2] for one in project["optional-dependencies"].get("simgpu", [])] in ([], [version])


def test_a_readme_tells_a_stranger_of_their_package_and_its_links_are_whole(sources: Path) -> None:
    for name in build.NAMES:
        text = (sources / name / "README.md").read_text(encoding="utf-8")
        assert "utils" not in text and "{" + "note}" not in text and len(text.split()) > 100
        assert all(link.startswith("https://") for link in re.findall(r"\]\(([^)]*)\)", text))
    assert "%load_ext ranks" in (sources / "ranks" / "README.md").read_text(encoding="utf-8")


def test_without_simgpu_its_option_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("utils.simulated.find_spec", lambda name: None)
    with pytest.raises(BadRequest, match="pip install simgpu"):
        PROVIDER.asked(Namespace(gpu="H100", network=None, shapes=False, backend=None))


def test_a_release_tells_what_its_version_changes(tmp_path: Path) -> None:
    """The workflow's own commands, for this version and for one that there is not."""
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))["jobs"]
    (command,) = (step["run"] for step in jobs["build"]["steps"] if "changelog" in step.get("run", ""))
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    version = tomllib.loads(project)["project"]["version"]
    (tmp_path / "docs").mkdir()
    for name in ("pyproject.toml", "docs/changelog.md"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    for tag, expected in ((f"v{version}", 0), ("v99.0", 1)):
        environment = os.environ | {"GITHUB_REF_NAME": tag}
        done = subprocess.run(["bash", "-e", "-c", command], cwd=tmp_path, env=environment, check=False)
        assert done.returncode == expected
    notes = (tmp_path / "notes" / "notes.md").read_text(encoding="utf-8")
    changes = (ROOT / "docs/changelog.md").read_text(encoding="utf-8")
    assert notes.strip() and f"## {version}\n{notes}" in changes and "## " not in notes


@pytest.mark.nightly  # a minute; the release workflow does the same
def test_the_wheels_do_what_they_promise_in_an_environment_of_their_own(tmp_path: Path) -> None:
    """One that sees this one's torch, Jupyter and the rest, but not the course."""
    python = tmp_path / "fresh" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "fresh"], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "build"], check=True)
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "RANKS_START")}
    command = [python, ROOT / "publish" / "packages.py", tmp_path / "out"]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    subprocess.run([*pip, "--no-deps", *(tmp_path / "out" / "dist").glob("*.whl")], check=True)
    (site,) = (tmp_path / "fresh").glob("lib/python*/site-packages")
    (site / "torch_and_jupyter.pth").write_text(sysconfig.get_path("purelib"))
    command = [python, ROOT / "publish" / "try_out.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("ranks and simgpu do what they promise\n"), done.stdout + done.stderr
