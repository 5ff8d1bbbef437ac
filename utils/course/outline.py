"""Which notebooks there are. A lecture's number stands in its file name alone; everything else knows it by its slug.

``notebooks/06_ddp_and_bucketing.ipynb`` has the number 6 and the slug "ddp_and_bucketing". Its lab and its solution
have the same name in ``labs/`` and ``solutions/``.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAME = re.compile(r"(\d\d)_([a-z0-9_]+)")
FILE_NAME = re.compile(rf"{NAME.pattern}\.ipynb")


def slug_of(name: str) -> str:
    """ "ddp_and_bucketing" from "06_ddp_and_bucketing"; a name without a number stays as it is."""
    found = NAME.fullmatch(name)
    return found[2] if found else name


def notebook(slug: str, folder: str = "notebooks", root: Path | None = None) -> Path:
    """The file of a lecture ("notebooks"), a lab ("labs") or a solution ("solutions").

    Raises:
        FileNotFoundError: if there is none, or more than one.
    """
    found = [
        path
        for path in sorted(((root or ROOT) / folder).glob(f"[0-9][0-9]_{slug}.ipynb"))
        if slug_of(path.stem) == slug
    ]
    if len(found) != 1:
        many = " and ".join(path.name for path in found)
        raise FileNotFoundError(
            f"{folder}/ has {many}: a slug belongs to one file" if found else f"{folder}/ has no NN_{slug}.ipynb"
        )
    return found[0]


def slugs(folder: str = "notebooks", root: Path | None = None) -> list[str]:
    """The slugs of a folder's notebooks, in the order of their numbers."""
    return [
        slug_of(path.stem) for path in sorted(((root or ROOT) / folder).glob("*.ipynb")) if NAME.fullmatch(path.stem)
    ]


def numbered(slug: str, root: Path | None = None) -> str:
    """ "06_ddp_and_bucketing" from "ddp_and_bucketing", for people; the slug alone where no solution has it."""
    try:
        return notebook(slug, "solutions", root).stem
    except FileNotFoundError:
        return slug
