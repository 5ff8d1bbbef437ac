"""What learners have handed in: whose it is, of which lab, and a sentence for what is not graded.

Understood are ``folder/42_toy.ipynb`` (one learner), ``folder/<learner>/….ipynb`` with or without
further folders in between, and nbgrader's ``submitted/<learner>/<lab>/….ipynb``. A lab is known by the slug in its
file's name, whatever its number was then and whatever a browser has added ("42_toy (1).ipynb").
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checks.grade.official import OfficialLab
from course.build import LabError, read_notebook

FEEDBACK = "feedback"
_NO_LEARNERS = {FEEDBACK, "__pycache__", "autograded", "release", "source"}  # (nbgrader's, and ours)
_PACKED = {".zip", ".tar", ".gz", ".tgz", ".rar", ".7z"}
_SHOWN = 3


@dataclass(frozen=True)
class HandedIn:
    """One notebook of one learner.

    Args:
        path: the file; its folder is what the notebook may read.
        alone: whether folders beside it are not the learner's own.
        notebook: what nbformat has read; None if it is no notebook.
        note: a sentence for the learner, or "".
    """

    learner: str
    slug: str
    path: Path
    alone: bool
    notebook: Any = field(repr=False, compare=False)
    note: str = ""


def find_handed_in(folder: Path, labs: dict[str, OfficialLab]) -> tuple[list[HandedIn], dict[str, list[str]]]:
    """The notebooks to grade, and by learner (all of them) sentences about files that are not graded.

    Raises:
        LabError: if there is no such folder, or no lab of the course in it.
    """
    if not folder.is_dir():
        raise LabError(f"{folder} is a file, not a folder." if folder.exists() else f"there is no folder {folder}.")
    if (folder / "submitted").is_dir():
        folder = folder / "submitted"
    found, notes = [], {}
    for learner, files in _learners(folder, labs):
        by_slug = defaultdict(list)
        for path in files:
            by_slug[_slug(path, labs)].append(path)
        strange = by_slug.pop("", [])
        found += [_best(learner, slug, paths, folder, labs[slug]) for slug, paths in sorted(by_slug.items())]
        notes[learner] = _about(strange, bool(by_slug))
    if not found:
        known = ", ".join(f"NN_{slug}.ipynb" for slug in sorted(labs)) or "none: there are no labs yet"
        raise LabError(f"{folder} holds no notebook of the course, nor do its folders (looked for {known}).")
    order = list(labs)
    return sorted(found, key=lambda item: (list(notes).index(item.learner), order.index(item.slug))), notes


def _learners(folder: Path, labs: dict[str, OfficialLab]) -> Iterator[tuple[str, list[Path]]]:
    """Each learner's name and files."""
    folders = [entry for entry in sorted(folder.iterdir()) if entry.is_dir() and _is_visible(entry.name)]
    own = [entry for entry in folders if _slug(entry, labs)]  # a folder for each lab
    files = [path for path in _files(folder) if path.parent == folder or {*path.parents} & {*own}]
    if any(_slug(path, labs) for path in files):
        yield printable(folder.resolve().name), files
    for entry in folders:
        if entry not in own and entry.name not in _NO_LEARNERS:
            yield printable(entry.name), _files(entry)


def _files(folder: Path) -> list[Path]:
    """The notebooks and packed files in a folder and below."""
    found = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in {".ipynb", *_PACKED}]
    visible = [path for path in found if all(map(_is_visible, path.relative_to(folder).parts))]
    return [path for path in visible if path.is_file() and not path.is_symlink()]


def _is_visible(name: str) -> bool:
    return not name.startswith((".", "__"))


def _slug(path: Path, labs: dict[str, OfficialLab]) -> str:
    """Of which lab a notebook or a folder is, by its name; of a notebook also by its folder's (nbgrader); or ""."""
    names = {".ipynb": (path.stem, path.parent.name)}.get(path.suffix.lower(), (path.name,) if path.is_dir() else ())
    for name in names:
        for slug in sorted(labs, key=len, reverse=True):
            if name.lower() == slug or re.search(rf"\d\d_{slug}", name.lower()):
                return slug
    return ""


def _best(learner: str, slug: str, paths: list[Path], top: Path, lab: OfficialLab) -> HandedIn:
    """Of several notebooks of one lab: the one with most of its check cells, and of those the newest."""
    read: dict[Path, tuple[Any, str]] = {}
    for path in paths:
        try:
            notebook = read_notebook(path)
            read[path] = notebook, lab.about(notebook)
        except LabError as error:
            read[path] = None, str(error)

    def worth(path: Path) -> tuple[int, float]:
        notebook = read[path][0]
        return -len(lab.missing_in(notebook)) if notebook else -len(lab.cells) - 1, path.stat().st_mtime

    best = max(paths, key=worth)
    notebook, note = read[best]
    here = best.parent
    others = [path.name if path.parent == here else f"{path.parent.name}/{path.name}" for path in paths if path != best]
    if others:
        note = f"{best.name} was graded, not {_listed(others)}: of several notebooks of a lab the newest counts. {note}"
    return HandedIn(learner, slug, best, here == top, notebook, note.strip())


def _about(strange: list[Path], has_labs: bool) -> list[str]:
    packed = [path.name for path in strange if path.suffix.lower() in _PACKED]
    notebooks = [path.name for path in strange if path.suffix.lower() == ".ipynb"]
    notes = [f"not looked into: {_listed(packed)}. Unpack it, and grade again."] if packed else []
    notes += [f"not graded, for its name is that of no lab with checks: {_listed(notebooks)}."] if notebooks else []
    return notes or ([] if has_labs else ["no notebook is in this folder."])


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(printable(name) for name in names[:_SHOWN]) + more


def printable(name: str) -> str:
    """A file's name as one line of text: umlauts in one piece, nothing that moves a cursor."""
    composed = unicodedata.normalize("NFC", name)
    return "".join(character if character.isprintable() else "?" for character in composed)
