"""Start the course in any Jupyter (Colab, Kaggle, a university's hub, a rented GPU). One cell fetches it and runs this:

    %cd -0
    ![ -d many-gpus ] || git clone -q --depth 1 https://github.com/OWNER/NAME many-gpus
    %run many-gpus/scripts/start.py

It says what it will do, lets pip add what this Python lacks (it replaces nothing that a running kernel uses, and never
torch), lets other notebooks find the course, and runs a first all-reduce on ranks. Run again, it has little to do. In a
terminal: ``python many-gpus/scripts/start.py``. It needs nothing but Python.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

COURSE = Path(__file__).resolve().parents[1]
FITS = (3, 11), (3, 15)
"""Versions of Python: the first that fits, and the first that does not any more."""
FIRST_CELL = "x = torch.tensor([rank], device=device)\ndist.all_reduce(x)\nx\n"


def main() -> None:
    """All of it.

    Raises:
        SystemExit: something is missing; its sentence says what to do.
    """
    here = ".".join(map(str, sys.version_info[:3]))
    if not FITS[0] <= sys.version_info[:2] < FITS[1]:
        raise SystemExit(
            f"This is Python {here}, and torch has builds for 3.{FITS[0][1]} to 3.{FITS[1][1] - 1}: choose a kernel "
            "with one of these, then run this cell again."
        )
    import tomllib

    asked = tomllib.loads((COURSE / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    wanted, said = decide(asked, set(sys.modules), (COURSE / "requirements.lock").read_text(encoding="utf-8"))
    torch, cards = installed("torch"), gpus()
    ranks = cards if cards > 1 else 4
    print(
        f"Python {here}, torch {torch or 'not there'}, GPUs of NVIDIA: {cards}. The course is in {COURSE}.",
        *said,
        sep="\n",
    )
    if wanted:
        print(f"pip adds {', '.join(wanted)}: {'a minute or less' if torch else 'some minutes'}.")
    if not torch and not cards and sys.platform == "linux":
        print(
            "(On Linux pip's torch brings CUDA, some 5 GB that are of no use without such a GPU. To save them, press "
            "stop, install the build for CPUs that pytorch.org/get-started names, and run this cell again.)"
        )
    print(f"Then {ranks} ranks start and add up their numbers: some ten seconds, the first time longer.", flush=True)
    if wanted:
        install(wanted)
    print(register(), flush=True)
    sys.path.insert(0, str(COURSE))  # (%run takes one away again)
    importlib.invalidate_caches()
    os.chdir(COURSE / "notebooks")
    first_all_reduce(ranks)
    total = ranks * (ranks - 1) // 2
    print(f"Each rank held its own number, and now each has the sum of all, {total}. The course works here.")
    print(
        "Next: open many-gpus/notebooks/00_start_here.ipynb in the file browser, or go on in this notebook, which is "
        "in the folder many-gpus/notebooks now."
    )


def installed(package: str) -> str | None:
    """The version of a package that is there; nothing is imported."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def decide(asked: Iterable[str], loaded: set[str], lock: str) -> tuple[list[str], list[str]]:
    """What pip is to add, and what is to be said of what stays as it is.

    A package that is newer than asked for stays. One that is older is replaced, unless the running kernel uses it.

    Args:
        asked: pyproject's dependencies.
        loaded: names of modules that the kernel has imported.
        lock: the text of requirements.lock: what is missing is added as it was tested.

    Raises:
        SystemExit: torch is too old.
    """
    try:
        from packaging.requirements import Requirement
    except ImportError:  # pip has a copy
        from pip._vendor.packaging.requirements import Requirement
    wanted, said = [], []
    for one in map(Requirement, asked):
        name, now = one.name, installed(one.name)
        if now is None:
            locked = re.search(rf"^{re.escape(name)}==(\S+)", lock, re.MULTILINE)
            wanted.append(f"{name}=={locked[1]}" if locked else str(one))
        elif all(bound.contains(now, prereleases=True) for bound in one.specifier if bound.operator == ">="):
            if name == "torch" and not one.specifier.contains(now, prereleases=True):
                said.append(f"torch {now} is not one that the course was tested with ({one.specifier}); it stays.")
        elif name == "torch":
            raise SystemExit(
                f"torch {now} is too old for the course ({one.specifier}). Install a newer one that fits this machine "
                "(pytorch.org/get-started says how), restart the kernel, then run this cell again."
            )
        elif name in loaded | {"ipython", "ipykernel"}:
            said.append(f"{name} {now} is older than was tested ({one.specifier}), but in use: it stays.")
        else:
            wanted.append(str(one))
    return wanted, said


def install(wanted: list[str]) -> None:
    """Let pip install these packages, and show what it fetches.

    Raises:
        SystemExit: it could not.
    """
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar=off", *wanted]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        for line in pip.stdout or ():
            lines.append(line.strip())
            if re.match(r"Downloading .*\b[MG]B\)|Installing ", lines[-1]):
                print("  " + lines[-1][:150], flush=True)
    text = "\n".join(lines)
    if pip.returncode:
        raise SystemExit(sorry(text, wanted))
    if site.ENABLE_USER_SITE:  # it may be new, and then this kernel does not look there
        site.addsitedir(site.getusersitepackages())


def sorry(text: str, wanted: list[str]) -> str:
    """Why pip could not, by what it has printed, and what to do."""
    packages = " ".join(f"'{one}'" for one in wanted)
    if "No module named pip" in text:
        return f"This Python has no pip: type `!python -m ensurepip`, or install {packages}; then run this cell again."
    if "externally-managed-environment" in text:
        return (
            "This Python belongs to the system, and pip may not add to it. Make another in a terminal (`python3 -m "
            "venv jupyter`, `jupyter/bin/pip install jupyterlab`, `jupyter/bin/jupyter lab`), and run this cell there."
        )
    why = next((line for line in reversed(text.splitlines()) if "ERROR" in line), text[-200:])
    return (
        f"pip could not install {packages}: {why}. Has this machine a network (on Kaggle: Settings, Internet on) and "
        "room on its disk? Then run this cell again."
    )


def register() -> str:
    """Let later kernels of this Python find the course, by a line in a .pth file (pip might want a network, or refuse).

    Returns:
        A sentence that says how.
    """
    places = [sysconfig.get_path("purelib"), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    for file in (Path(place, "many_gpus_course.pth") for place in places):
        line = f"{COURSE}\n"
        try:
            if not (file.exists() and file.read_text(encoding="utf-8") == line):
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(line, encoding="utf-8")
            return f"Other notebooks of this Python find the course by {file} (delete that file to undo it)."
        except OSError:
            continue
    return "This Python's folders cannot be written to, so each notebook of the course needs this cell first."


def gpus() -> int:
    """How many GPUs of NVIDIA there are, without importing torch."""
    if not shutil.which("nvidia-smi"):
        return 0
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return len(re.findall(r"^GPU \d+:", done.stdout, re.MULTILINE))


def first_all_reduce(ranks: int) -> None:
    """As a cell on ranks, in a notebook or without one."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell:
        print(f"\n%%ranks -n {ranks}\n{FIRST_CELL}", flush=True)
        if "utils" not in shell.extension_manager.loaded:
            shell.run_line_magic("load_ext", "utils")
        said = shell.run_cell_magic("ranks", f"-n {ranks}", FIRST_CELL)
        sys.modules["IPython"].display.display(said)  # as a cell's last line is shown
        return
    from utils.ranks import World

    print("\n" + FIRST_CELL, flush=True)
    with World(ranks) as world:
        for rank, x in world.run_cell(FIRST_CELL).items():
            print(f"rank {rank}: {x}")


if __name__ == "__main__":
    main()
