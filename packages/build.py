"""Builds what is useful without the course, for PyPI: ``make packages``.

- ``ranks``: cells and functions on several processes (``%load_ext ranks``, ``from ranks import World, launch``).
- ``simgpu``: simulated GPUs, with what draws them. Neither needs the other; ``%%ranks --gpu`` needs both.

Their sources are the course's. Here they are copied to other places, and each name of a module in them is changed with
them: in imports, in texts, and in comments. What names a module of ``utils`` that is left out ends the build.

    python packages/build.py [FOLDER]    sources, sdists and wheels, into build/packages or FOLDER (needs ``build``)
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PLACES = {
    "utils.ranks": "ranks",
    "utils.simulated": "ranks.simulated",
    "utils.hardware.nvml": "ranks.nvml",
    "simgpu": "simgpu",
    "utils.draw": "simgpu.draw",
    "utils.hardware.links": "simgpu.hardware.links",
}
"""Modules and packages of the course, and their names in what is published."""

ADDED = {
    "ranks/__init__.py": '\nfrom ranks import provider  # noqa: E402\n\nprovider.name = "ranks.simulated"\n',
}
"""What stands in ``utils/__init__.py`` for the course."""

PACKAGES: dict[str, dict[str, Any]] = {
    "ranks": {
        "description": "PyTorch cells and functions on several processes: %%ranks in a notebook, launch in a program",
        "keywords": ["pytorch", "distributed", "jupyter", "ipython", "multi-gpu"],
        # (IPython is there where it is needed; a newer one than the notebook's own would break the notebook.)
        "dependencies": ["torch>=2.9", "cloudpickle>=3", "psutil>=5.9", "nvidia-ml-py>=12"],
        "extras": {"simgpu": ["simgpu=={version}"]},
    },
    "simgpu": {
        "description": "Simulated GPUs: the real PyTorch code on many GPUs, with time and memory, on any computer",
        "keywords": ["pytorch", "gpu", "simulation", "distributed", "performance"],
        "dependencies": ["torch>=2.13,<2.15", "numpy>=1.26", "psutil>=5.9"],
        "extras": {"charts": ["matplotlib>=3.8"]},
    },
}

PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "{version}"
description = "{description}"
readme = "README.md"
license = "MIT"
license-files = ["LICENSE"]
authors = {authors}
requires-python = ">=3.11"
keywords = {keywords}
dependencies = {dependencies}
classifiers = ["Framework :: IPython", "Framework :: Jupyter", "Operating System :: POSIX", "Typing :: Typed"]

[project.optional-dependencies]
{extras}

[project.urls]
Documentation = "{address}/blob/main/docs/{page}.md"
Repository = "{address}"
Changelog = "{address}/blob/main/CHANGELOG.md"

[tool.setuptools.packages.find]
include = ["{name}*"]

[tool.setuptools.package-data]
"*" = ["py.typed", "*.toml"]
"""

NAME = re.compile(r"(?<![\w./])utils(?:\.\w+)*")
FROM = re.compile(r"\bfrom ([\w.]+) import (\w+)")


def renamed(text: str) -> str:
    """Text or code with the published names of modules.

    Raises:
        ValueError: it names a module of ``utils`` that is not published.
    """

    def place(match: re.Match[str]) -> str:
        if match[0] == "utils":  # by which the course loads them: "%load_ext utils"
            return "ranks"
        parts = match[0].split(".")
        for length in range(len(parts), 0, -1):
            if found := PLACES.get(".".join(parts[:length])):
                return ".".join([found, *parts[length:]])
        line = match.string.count("\n", 0, match.start()) + 1
        raise ValueError(f"line {line} names {match[0]}, which is not published: see PLACES in packages/build.py")

    def source(match: re.Match[str]) -> str:
        found = PLACES.get(f"{match[1]}.{match[2]}")
        return f"from {found.removesuffix('.' + match[2])} import {match[2]}" if found else match[0]

    return NAME.sub(place, FROM.sub(source, text))


def write_sources(name: str, to: Path) -> None:
    """The package as others would have written it: its modules, pyproject.toml, README and licence."""
    for old, new in PLACES.items():
        if new.partition(".")[0] != name:
            continue
        start = ROOT.joinpath(*old.split("."))
        files = sorted(start.rglob("*")) if start.is_dir() else [start.with_suffix(".py")]
        for path in (one for one in files if one.suffix in (".py", ".toml")):
            below = path.relative_to(start).as_posix() if start.is_dir() else ""
            there = to.joinpath(*new.split("."), below) if below else to.joinpath(*new.split(".")).with_suffix(".py")
            there.parent.mkdir(parents=True, exist_ok=True)
            try:
                text = renamed(path.read_text(encoding="utf-8"))
            except ValueError as error:
                sys.exit(f"{path.relative_to(ROOT)}: {error}")
            there.write_text(text + ADDED.get(there.relative_to(to).as_posix(), ""), encoding="utf-8")
    (to / name / "py.typed").touch()
    shutil.copy(ROOT / "LICENSE", to)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address = os.environ.get("REPOSITORY") or project["urls"]["Repository"]
    (to / "README.md").write_text(readme(name, f"{address}/blob/main/docs"), encoding="utf-8")
    package = PACKAGES[name]
    extras = [f"{extra} = {needs}".format(**project) for extra, needs in package["extras"].items()]
    values = package | {"name": name, "version": project["version"], "address": address, "extras": "\n".join(extras)}
    values["authors"] = "[" + ", ".join(f'{{ name = "{one["name"]}" }}' for one in project["authors"]) + "]"
    values["page"] = {"ranks": "ranks", "simgpu": "simulated_gpus"}[name]
    (to / "pyproject.toml").write_text(PYPROJECT.format(**values), encoding="utf-8")


def readme(name: str, docs: str) -> str:
    """The beginning of ``docs/ranks.md``, or of what ``help(simgpu)`` says.

    Args:
        docs: the address of the course's pages.
    """
    if name == "ranks":
        page = (ROOT / "docs" / "ranks.md").read_text(encoding="utf-8").partition("\n## Ranks that ask")[0]
        page = re.sub(r"```\{note\}.*?```\n\n", "", page, flags=re.DOTALL)
        return re.sub(r"\]\((\w+\.md)", rf"]({docs}/\1", page) + "\n"
    text = ast.get_docstring(ast.parse((ROOT / "simgpu" / "__init__.py").read_text(encoding="utf-8"))) or ""
    title, _, rest = renamed(text).partition("\n\nwhat a program uses")[0].partition("\n\n")
    more = "With `pip install ranks` and `%load_ext ranks`, `%%ranks -n 8 --gpu H100` gives one to each rank of a cell."
    pages = f"[All that they do]({docs}/simulated_gpus.md). [How true that is]({docs}/published.md)."
    return f"# {title.rstrip('.')}\n\n{rest}\n\n{more}\n\n{pages}\n".replace("``", "`")


def main(out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    for name in PACKAGES:
        write_sources(name, out / "sources" / name)
        command = [sys.executable, "-m", "build", "--outdir", out / "dist", out / "sources" / name]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "packages")
