"""The course's outline, read from the notebooks themselves. Needs nothing but Python.

A lecture's number stands in its file name alone; everything else knows it by its slug:
``notebooks/42_toy.ipynb`` has the number 42 and the slug "toy". Its lab and its solution
have the same name in ``labs/`` and ``solutions/``. Its title is its first heading; the minutes that it takes stand
below that, and those of a lab with each exercise. What cannot be read off is in the notebook's metadata, under
"course": the ``stage`` and the ``card`` on the map of the course, what it ``teaches`` for the table in the README, and
what it ``needs`` beyond the core ("frameworks").
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
"""Where the packages are: the repository, or where pip has put them."""
FILES = ROOT if (ROOT / "notebooks").is_dir() else ROOT / "course" / "files"
"""Where notebooks, labs, solutions and scripts are: the repository, or what a wheel has brought along."""
NAME = re.compile(r"(\d\d)_([a-z0-9_]+)")
FILE_NAME = re.compile(rf"{NAME.pattern}\.ipynb")
HEADING = re.compile(r"# \d\d · (\S.*)")
MINUTES = re.compile(r"^\*\*Time:\*\* (\d+) minutes", re.MULTILINE)
IN_LAB = re.compile(r"\*\*Minutes:\*\* (\d+)")
DESCRIPTION = ("stage", "card", "teaches")
FIRST = "start_here"
"""The lecture that keeps number 0: `make lab` opens it."""


@dataclass(frozen=True)
class Lecture:
    """One lecture, as the course map, the README and `make` need it.

    Args:
        number, slug: of its file name.
        title: its heading, without a subtitle after ":".
        stage: its part of the course map; card: a few words below its title there.
        teaches: the last column of the README's table.
        needs: "" or the extra that `make` has to install first.
        lab: whether it has one.
        minutes, lab_minutes: what its first cell, and the exercises of its lab, say that they take.
    """

    number: int
    slug: str
    title: str
    stage: str
    card: str
    teaches: str
    needs: str
    lab: bool
    minutes: int = 0
    lab_minutes: int = 0

    @property
    def name(self) -> str:
        """ "42_toy"."""
        return f"{self.number:02d}_{self.slug}"


def lectures(root: Path | None = None) -> list[Lecture]:
    """All lectures in the order of their numbers. What a notebook does not say is empty."""
    folder = (root or FILES) / "notebooks"
    return [_lecture(path) for path in sorted(folder.glob("*.ipynb")) if NAME.fullmatch(path.stem)]


def _lecture(path: Path) -> Lecture:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    said = notebook.get("metadata", {}).get("course", {})
    opening = "".join(notebook["cells"][0]["source"]) if notebook.get("cells") else ""
    heading, minutes = HEADING.match(opening), MINUTES.search(opening)
    found = NAME.fullmatch(path.stem)
    assert found is not None
    solution = path.parents[1] / "solutions" / path.name
    return Lecture(
        number=int(found[1]),
        slug=found[2],
        title=heading[1].partition(":")[0].strip() if heading else found[2],
        lab=solution.exists(),
        lab_minutes=sum(map(int, IN_LAB.findall(solution.read_text(encoding="utf-8")))) if solution.exists() else 0,
        needs=said.get("needs", ""),
        minutes=int(minutes[1]) if minutes else 0,
        **{key: said.get(key, "") for key in DESCRIPTION},
    )


def not_described(metadata: Any) -> list[str]:
    """What a lecture's metadata lack, in one sentence."""
    said = metadata.get("course", {})
    lacking = [key for key in DESCRIPTION if not str(said.get(key, "")).strip()]
    strange = [key for key in said if key not in (*DESCRIPTION, "needs")]
    if not lacking and not strange:
        return []
    example = '"course": {"stage": "…", "card": "…", "teaches": "…"}'
    wrong = f"lack {' and '.join(lacking)}" if lacking else f"have a strange {strange[0]!r}"
    return [f"the notebook's metadata {wrong}: the course map and the README's table need {example}"]


def faults(root: Path | None = None) -> list[str]:
    """What is wrong with the names of lectures, labs and solutions, a sentence each. Empty: numbers are contiguous."""
    root = root or ROOT
    found = [
        f"{folder}/{path.name} is not called NN_slug.ipynb"
        for folder in ("notebooks", "solutions")
        for path in sorted((root / folder).glob("*.ipynb"))
        if not FILE_NAME.fullmatch(path.name)
    ]
    names = _names(root, "notebooks")
    numbers = [int(name[:2]) for name in names]
    if numbers != list(range(len(numbers))):
        found.append(f"the lectures' numbers are not 0, 1, 2, … but {', '.join(map(str, numbers))}")
    known = [slug_of(name) for name in names]
    found += [
        f"the slug {slug} has {known.count(slug)} lectures" for slug in sorted(set(known)) if known.count(slug) > 1
    ]
    return found + [
        f"{folder}/{name}.ipynb has no lecture of this name"
        for folder in ("labs", "solutions")
        for name in _names(root, folder)
        if name not in names
    ]


def _names(root: Path, folder: str) -> list[str]:
    return sorted(path.stem for path in (root / folder).glob("*.ipynb") if NAME.fullmatch(path.stem))


def slug_of(name: str) -> str:
    """ "toy" from "42_toy"; a name without a number stays as it is."""
    found = NAME.fullmatch(name)
    return found[2] if found else name


def slugs(folder: str = "notebooks", root: Path | None = None) -> list[str]:
    """The slugs of a folder's notebooks, in the order of their numbers."""
    return [slug_of(name) for name in _names(root or FILES, folder)]


def notebook(slug: str, folder: str = "notebooks", root: Path | None = None) -> Path:
    """The file of a lecture ("notebooks"), a lab ("labs") or a solution ("solutions").

    Raises:
        FileNotFoundError: if there is none, or more than one.
    """
    root = root or FILES
    found = [name for name in _names(root, folder) if slug_of(name) == slug]
    if len(found) != 1:
        many = " and ".join(f"{name}.ipynb" for name in found)
        raise FileNotFoundError(
            f"{folder}/ has {many}: a slug belongs to one file" if found else f"{folder}/ has no NN_{slug}.ipynb"
        )
    return root / folder / f"{found[0]}.ipynb"


def numbered(slug: str, root: Path | None = None) -> str:
    """ "42_toy" from "toy", for people; the slug alone where no solution has it."""
    try:
        return notebook(slug, "solutions", root).stem
    except FileNotFoundError:
        return slug
