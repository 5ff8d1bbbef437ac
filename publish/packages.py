"""Builds what is useful without the course, for PyPI: ``make packages``.

- ``ranks``: cells and functions on several processes (``%load_ext ranks``, ``from ranks import World, launch``).
- ``simgpu``: simulated GPUs, with what draws them. Neither needs the other; ``%%ranks --gpu`` needs both.

Their sources are the course's, copied to the places of ``PLACES``; the names of modules in them change with the places,
in code and in texts. What names a module of ``utils`` that is left out ends the build.

    python publish/packages.py [FOLDER]    sources, sdists and wheels, into build/packages or FOLDER (needs ``build``)
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

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
NAMES = ("ranks", "simgpu")
PLACES = {
    "utils.ranks": "ranks",
    "utils.simulated": "ranks.simulated",
    "utils.hardware.nvml": "ranks.nvml",
    "simgpu": "simgpu",
    "utils.draw": "simgpu.draw",
    "utils.hardware.links": "simgpu.hardware.links",
}
"""Modules and packages of the course, and their names in what is published."""
PROVIDER = '\nfrom ranks import provider  # noqa: E402\n\nprovider.name = "ranks.simulated"\n'
"""The end of ranks/__init__.py; in the course it stands in ``utils/__init__.py``."""
PLACEHOLDER = "https://github.com/OWNER/NAME"


def renamed(text: str) -> str:
    """Text or code with the published names of modules.

    Raises:
        ValueError: it names a module of ``utils`` that is not published.
    """
    for old, new in PLACES.items():  # "from utils import draw"
        (package, _, module), (published, _, same) = old.rpartition("."), new.rpartition(".")
        if module == same:
            text = re.sub(rf"\bfrom {package} import {module}\b", f"from {published} import {module}", text)
        text = re.sub(rf"(?<![\w./]){re.escape(old)}\b", new, text)
    if left := re.search(r"(?<![\w./])utils\.\w+|from utils\b.*", text):
        line = text.count("\n", 0, left.start()) + 1
        raise ValueError(f"line {line} names {left[0]}, which is not published: see PLACES in publish/packages.py")
    return re.sub(r"(?<![\w./])utils\b", "ranks", text)  # by which the course loads them: "%load_ext utils"


def write_sources(name: str, to: Path) -> None:
    """The package as others would have written it: its modules, pyproject.toml, README and licence."""
    for old, new in PLACES.items():
        if new.partition(".")[0] != name:
            continue
        start, there = ROOT.joinpath(*old.split(".")), to.joinpath(*new.split("."))
        files = start.rglob("*") if start.is_dir() else start.parent.glob(f"{start.name}.*")
        for path in (path for path in files if path.suffix in (".py", ".toml")):
            copy = there / path.relative_to(start) if start.is_dir() else there.with_suffix(path.suffix)
            copy.parent.mkdir(parents=True, exist_ok=True)
            try:
                copy.write_text(renamed(path.read_text(encoding="utf-8")), encoding="utf-8")
            except ValueError as error:
                sys.exit(f"{path.relative_to(ROOT)}: {error}")
    if name == "ranks":
        with open(to / "ranks" / "__init__.py", "a", encoding="utf-8") as init:
            init.write(PROVIDER)
    (to / name / "py.typed").touch()
    shutil.copy(ROOT / "LICENSE", to)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address = os.environ.get("REPOSITORY") or project["urls"]["Repository"]
    (to / "README.md").write_text(readme(name, f"{address}/blob/main/docs"), encoding="utf-8")
    about = (HERE / name / "pyproject.toml").read_text(encoding="utf-8").partition("\n")[2]
    about = about.replace("0.0.0", project["version"]).replace(PLACEHOLDER, address)
    (to / "pyproject.toml").write_text(about, encoding="utf-8")


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
    for name in NAMES:
        write_sources(name, out / "sources" / name)
        command = [sys.executable, "-m", "build", "--outdir", out / "dist", out / "sources" / name]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "packages")
