"""The course away from its repository: notebooks that fetch it, and files that a wheel has brought along.

Colab and Kaggle open one notebook and nothing else. ``python -m course anywhere FOLDER ADDRESS`` writes every notebook
with a cell in front that fetches the course and starts it (scripts/start.py); a workflow makes the branch ``anywhere``
of them.

``pip install git+ADDRESS`` brings the files that a learner works with (wheel.py says which), and ``python -m course get
FOLDER`` puts them into a folder. Both need nothing but Python.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from course.build import LabError
from course.outline import FILE_NAME, FILES, ROOT

BRANCH = "anywhere"
"""Where the buttons for Colab and Kaggle find the notebooks."""
NOTEBOOKS = ("notebooks", "labs", "solutions")
CELL = """\
%cd -0
![ -d many-gpus ] || git clone -q --depth 1 {address} many-gpus
%run many-gpus/scripts/start.py"""
"""Starts the course in any Jupyter; the first line leads back to where the kernel began, for a second run."""
WORDS = """\
**Run the next cell first.** It fetches the [course]({address}) into the folder `many-gpus`, says what it adds to this
Python, and ends with a sum over ranks: about a minute. After a restart of the kernel run it again. (Kaggle: Settings →
*Internet on*; for real GPUs also Accelerator → *GPU T4 x2*.)"""


def write(folder: Path, address: str, root: Path = ROOT) -> list[Path]:
    """Write each lecture, lab and solution with the cell in front, under the name that it has in the repository.

    Args:
        folder: is made; files of the same names are written anew.
        address: what `git clone` takes.
        root: the repository.
    """
    written = []
    for path in sorted(path for name in NOTEBOOKS for path in (root / name).glob("*.ipynb")):
        if not FILE_NAME.fullmatch(path.name):
            continue
        notebook = json.loads(path.read_text(encoding="utf-8"))
        notebook["cells"][:0] = _front(address.rstrip("/"))
        written.append(folder / path.parent.name / path.name)
        written[-1].parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True) + "\n"
        written[-1].write_text(text, encoding="utf-8", newline="\n")
    return written


def _front(address: str) -> list[dict[str, Any]]:
    words, cell = (text.format(address=address).splitlines(keepends=True) for text in (WORDS, CELL))
    return [
        {"cell_type": "markdown", "id": "anywhere-words", "metadata": {}, "source": words},
        {
            "cell_type": "code",
            "execution_count": None,
            "id": "anywhere-start",
            "metadata": {},
            "outputs": [],
            "source": cell,
        },
    ]


def get(folder: Path, files: Path = FILES) -> str:
    """Put the course's files into a new folder.

    Args:
        folder: must not be there, or be empty.
        files: where they are taken from.

    Returns:
        What to type next.

    Raises:
        LabError: nothing was written; the sentence says why.
    """
    if files == ROOT:
        raise LabError(f"The course's files are here already, in {ROOT}: open notebooks/00_start_here.ipynb there.")
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise LabError(f"{folder} is there already, and nothing in it is replaced: name another folder.")
    try:
        shutil.copytree(files, folder, dirs_exist_ok=True)
    except OSError as error:
        raise LabError(f"{folder} cannot be written: {error}.") from None
    return (
        f"The course is in {folder}. Next:\n  cd {folder}\n  jupyter lab notebooks/00_start_here.ipynb\n"
        "(No jupyter there? `pip install jupyterlab`.)"
    )
