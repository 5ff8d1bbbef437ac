"""Lectures inserted, moved and split off: files are renamed with their labs, and every mention of a number follows.

    python -m course insert SLUG --at N [--title TITLE] [--lab]
    python -m course move SLUG --to N
    python -m course split SLUG NEW_SLUG [--title TITLE] [--lab]

The numbers stay 00, 01, 02, … What cannot be done is refused before anything is changed.

Mentions are found in file names, in headings, in links, and in prose: ``42_toy`` if there is such a lecture, wherever
it stands; ``# 42 · Toy`` as a heading and ``[42 · Toy]`` as a link; "lecture 42", "Lab 42", "lectures 42, 43 and 45",
"labs 42 to 45" in prose, also across the end of a line. Other numbers stay as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from course import new, outline, readme
from course.build import LabError, build, differences

FOLDERS = ("notebooks", "solutions", "labs")
SHOWS_THE_COURSE = re.compile(r"\b(?:course_map|progress)\(")
_NEXT = re.compile(r"\bNext:(?:\*\*)?\s+\[[^\]]*\]\((?:\.\./notebooks/)?\d\d_([a-z0-9_]+)\.ipynb\)")
_KINDS = "lecture|lab|solution|notebook"
_ONE = rf"\b(?:{_KINDS})[\s-]+\d\d\b"
_SEVERAL = rf"\b(?:{_KINDS})s\s+\d\d\b(?:(?:,\s+|,?\s+(?:and|or|to)\s+|\s?[–-]\s?)\d\d\b)*"
IN_PROSE = re.compile(rf"(?:{_SEVERAL}|{_ONE})(?![\d.:%]\d)", re.IGNORECASE)
IN_HEADING = re.compile(r"(?:^# |\[)\d\d(?= · |\]\()", re.MULTILINE)
_NUMBER = re.compile(r"\d\d")


class Refused(LabError):
    """Why nothing was done, in one sentence."""


def insert(slug: str, at: int, title: str = "", lab: bool = False, root: Path = outline.ROOT) -> list[str]:
    """Make a lecture with number ``at``, from a skeleton that has every part of a lecture; the others move up.

    Returns:
        What was done and what is left to do, a line each.

    Raises:
        Refused: before anything is changed.
    """
    course = _course(root)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", slug):
        raise Refused(f"{slug!r} is no slug: small letters, digits and underscores, beginning with a letter.")
    if slug in course:
        raise Refused(f"The slug {slug} is taken: {course.index(slug):02d}_{slug}.ipynb.")
    if not 1 <= at <= len(course):
        raise Refused(f"A new lecture's number is 1 to {len(course)}, not {at}.")
    title = title.strip() or slug.replace("_", " ").capitalize()
    before = outline.lectures(root)[at - 1]
    following = outline.lectures(root)[at] if at < len(course) else None
    made = {f"notebooks/{at:02d}_{slug}.ipynb": new.lecture(at, slug, title, before, following, lab)}
    if lab:
        made[f"solutions/{at:02d}_{slug}.ipynb"] = new.solution(at, slug, title, exercise=False)
    return _renumber(root, course, [*course[:at], slug, *course[at:]], made)


def move(slug: str, to: int, root: Path = outline.ROOT) -> list[str]:
    """Give a lecture another number; those between its old place and its new one move up or down."""
    course = _course(root)
    _known(slug, course)
    if slug == outline.FIRST:
        raise Refused(f"{slug} stays number 00: `make lab` opens it.")
    if not 1 <= to < len(course):
        raise Refused(f"A lecture can be moved to the numbers 1 to {len(course) - 1}, not to {to}.")
    order = [other for other in course if other != slug]
    order.insert(to, slug)
    return _renumber(root, course, order, {})


def split(slug: str, new_slug: str, title: str = "", lab: bool = False, root: Path = outline.ROOT) -> list[str]:
    """Make a lecture directly behind another, in the same stage and with the same needs, for a part of its matter."""
    course = _course(root)
    _known(slug, course)
    return insert(new_slug, course.index(slug) + 1, title, lab, root)


def _course(root: Path) -> list[str]:
    """The slugs in order, if all is in order."""
    if found := outline.faults(root):
        raise Refused(f"First mend this: {found[0]}.")
    try:
        differences(root / "solutions", root / "labs")
        readme.with_table((root / "README.md").read_text(encoding="utf-8"), root)
    except (LabError, ValueError, OSError) as error:
        raise Refused(f"First mend this: {error}") from None
    return outline.slugs(root=root)


def _known(slug: str, course: Sequence[str]) -> None:
    if slug not in course:
        raise Refused(f"There is no lecture {slug}: they are {', '.join(course)}.")


def _renumber(root: Path, course: Sequence[str], order: Sequence[str], made: dict[str, str]) -> list[str]:
    """Everything is worked out in memory; then files are renamed and written."""
    slugs = dict(enumerate(course))
    numbers = {number: order.index(slug) for number, slug in slugs.items()}

    def change(text: str) -> str:
        return renumber(text, slugs, numbers)

    renamed, texts, mended = {}, {}, []
    for folder in FOLDERS:
        for number, slug in slugs.items():
            path = root / folder / f"{number:02d}_{slug}.ipynb"
            if not path.exists():
                continue
            after = path.with_name(f"{numbers[number]:02d}_{slug}.ipynb")
            if after != path:
                renamed[path] = after
            if folder != "labs":
                old = path.read_text(encoding="utf-8")
                if (text := renumber_notebook(old, change)) != old:
                    texts[after] = text
                    mended.append(f"{folder}/{after.name}")
    for path in [*sorted(root.glob("*.md")), *sorted((root / "docs").glob("**/*.md"))]:
        old = path.read_text(encoding="utf-8")
        if (text := change(old)) != old:
            texts[path] = text
            mended.append(path.relative_to(root).as_posix())
    texts |= {root / name: text for name, text in made.items()}

    for path in renamed:
        path.rename(path.with_suffix(".renamed"))
    for path, after in renamed.items():
        path.with_suffix(".renamed").rename(after)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8", newline="\n")
    build(root / "solutions", root / "labs")
    readme.write(root)
    return _report(root, renamed, mended, made)


def _report(root: Path, renamed: dict[Path, Path], mended: Sequence[str], made: dict[str, str]) -> list[str]:
    lines = [f"made {name}" for name in made]
    for old, after in sorted({old.stem: after.stem for old, after in renamed.items()}.items()):
        folders = [path.parent.name for path in renamed if path.stem == old]
        lines.append(f"renamed {old} to {after} ({', '.join(folders)})")
    if mended:
        lines.append(f"mended numbers and links in {', '.join(mended)}")
    lines.append("wrote labs/ and the table in README.md")
    course = outline.slugs(root=root)
    again = []
    for path in (path for folder in FOLDERS[:2] for path in sorted((root / folder).glob("*.ipynb"))):
        text, name = path.read_text(encoding="utf-8"), f"{path.parent.name}/{path.name}"
        if SHOWS_THE_COURSE.search(text) and _code_shows_the_course(text):
            again.append(name)
        here = course.index(outline.slug_of(path.stem))
        for slug in _NEXT.findall(text):
            if course[here + 1 : here + 2] != [slug]:
                lines.append(f"look at {name}: its “Next” leads to {slug}, which does not come next")
    if again:
        lines.append(f'run them again, for they show the course: make execute NB="{" ".join(again)}"')
    stages = [lecture.stage for lecture in outline.lectures(root)]
    torn = {stage for place, stage in enumerate(stages) if stage in stages[:place] and stages[place - 1] != stage}
    lines += [f"look at the course map: the stage {stage!r} is torn apart" for stage in sorted(torn)]
    return lines


def _code_shows_the_course(text: str) -> bool:
    cells = json.loads(text)["cells"]
    return any(SHOWS_THE_COURSE.search("".join(c["source"])) for c in cells if c["cell_type"] == "code")


# ---------------------------------------------------------------------- mentions
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
