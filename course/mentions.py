"""Numbers of lectures in texts, found and replaced: in file names, in headings, in links, and in prose.

``42_toy`` if there is such a lecture, wherever it stands; ``# 42 · Toy`` as a heading and ``[42 · Toy]`` as a link;
"lecture 42", "Lab 42", "lectures 42, 43 and 45", "labs 42 to 45" in prose, also across the end of a line. Other numbers
stay as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

_KINDS = "lecture|lab|solution|notebook"
_ONE = rf"\b(?:{_KINDS})[\s-]+\d\d\b"
_SEVERAL = rf"\b(?:{_KINDS})s\s+\d\d\b(?:(?:,\s+|,?\s+(?:and|or|to)\s+|\s?[–-]\s?)\d\d\b)*"
IN_PROSE = re.compile(rf"(?:{_SEVERAL}|{_ONE})(?![\d.:%]\d)", re.IGNORECASE)
IN_HEADING = re.compile(r"(?:^# |\[)\d\d(?= · )", re.MULTILINE)
_NUMBER = re.compile(r"\d\d")


def renumber(text: str, slugs: Mapping[int, str], numbers: Mapping[int, int]) -> str:
    """The text with new numbers.

    Args:
        slugs: of each lecture, by its number before.
        numbers: the number of each lecture afterwards, by its number before.
    """

    def new(found: re.Match[str]) -> str:
        return f"{numbers[int(found[0])]:02d}" if int(found[0]) in numbers else found[0]

    def inside(found: re.Match[str]) -> str:
        return _NUMBER.sub(new, found[0])

    names = {f"{number:02d}_{slug}": f"{numbers[number]:02d}_{slug}" for number, slug in slugs.items()}
    in_names = re.compile(rf"(?<!\w)(?:{'|'.join(sorted(names, key=len, reverse=True))})(?!\w)")
    text = in_names.sub(lambda found: names[found[0]], text)
    return IN_PROSE.sub(inside, IN_HEADING.sub(inside, text))


def renumber_notebook(text: str, change: Callable[[str], str]) -> str:
    """A notebook's file with ``change`` applied to what a reader sees in it; the same bytes if that changes nothing."""
    notebook = json.loads(text)
    before = json.dumps(notebook)
    for cell in notebook["cells"]:
        _change(cell, "source", change)
        for output in cell.get("outputs", []):
            _change(output, "text", change)
            if "traceback" in output:
                output["traceback"] = [change(line) for line in output["traceback"]]
            for kind in output.get("data", {}):
                if not kind.startswith("image/") and not kind.endswith("json"):
                    _change(output["data"], kind, change)
    for key in notebook["metadata"].get("course", {}):
        _change(notebook["metadata"]["course"], key, change)
    if json.dumps(notebook) == before:
        return text
    return json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def _change(part: dict[str, Any], key: str, change: Callable[[str], str]) -> None:
    """nbformat stores a text as a list of its lines, and a mention may go on in the next line."""
    if key not in part:
        return
    old = part[key] if isinstance(part[key], str) else "".join(part[key])
    if (new := change(old)) != old:
        part[key] = new if isinstance(part[key], str) else new.splitlines(keepends=True)
