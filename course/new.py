"""A new lecture and a new lab before anybody has written them, from ``templates/``: every part is there and works.

A lecture has "…" for what is to be said. A lab has an exercise, its check, and answers to try it on:
``make new-lab SLUG=…`` makes it for a lecture that has no lab yet, or one without any exercise. In a template, words in
capitals (NUMBER, TITLE, NAME, SLUG, LINKS) stand for what is the lecture's own.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from course import outline, readme
from course.build import LabError, build
from course.notebooks import as_text, execute
from course.outline import Lecture

TEMPLATES = Path(__file__).with_name("templates")


def lecture(number: int, slug: str, title: str, before: Lecture, following: Lecture | None, lab: bool) -> str:
    """The text of a lecture that keeps the habits, executed.

    Args:
        before: the lecture in front of it, whose stage and needs it shares.
        following: the one behind it, as it is numbered now.
        lab: whether to link to a lab.
    """
    name = f"{number:02d}_{slug}"
    links = f"**Lab:** [{number:02d} · {title}](../labs/{name}.ipynb).\n" if lab else ""
    if following:
        later = f"{number + 1:02d}"
        links += f"\n**Next:** [{later} · {following.title}]({later}_{following.slug}.ipynb).\n"
    notebook = _notebook("lecture", NUMBER=f"{number:02d}", TITLE=title, LINKS=links)
    notebook.metadata["course"] = {"stage": before.stage, "card": "…", "teaches": "…"}
    if before.needs:
        notebook.metadata["course"]["needs"] = before.needs
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{name}.ipynb")
        path.write_text(as_text(notebook), encoding="utf-8")
        execute(path)
        return path.read_text(encoding="utf-8")


def solution(number: int, slug: str, title: str, exercise: bool) -> str:
    """The text of a solution, with one exercise or without any."""
    words = {"NUMBER": f"{number:02d}", "TITLE": title, "NAME": f"{number:02d}_{slug}", "SLUG": slug}
    notebook = _notebook("lab", **words)
    if not exercise:
        del notebook.cells[1:]
    return as_text(notebook)


def lab(slug: str, root: Path = outline.ROOT) -> list[str]:
    """Write a lab for a lecture; nothing that has been written is touched.

    Returns:
        What was done and what is left to do, a line each.

    Raises:
        LabError: before anything is changed.
    """
    of = next((one for one in outline.lectures(root) if one.slug == slug), None)
    if of is None:
        known = ", ".join(outline.slugs(root=root))
        raise LabError(f"There is no lecture {slug} (make it with `python -m course insert`): they are {known}.")
    made = {
        f"checks/labs/{slug}/__init__.py": "exercises.py.txt",
        f"checks/labs/{slug}/averaging.py": "check.py.txt",
        f"tests/answers/{slug}/mean.py": "answers.py.txt",
    }
    notebook = root / "solutions" / f"{of.name}.ipynb"
    taken = [name for name in made if (root / name).exists()]
    if notebook.exists() and "BEGIN SOLUTION" in notebook.read_text(encoding="utf-8"):
        taken.append(f"solutions/{notebook.name}")
    if taken:
        raise LabError(f"The lab {slug} is begun ({taken[0]} is there): add exercises to it by hand.")
    for name, template in made.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(filled(template, SLUG=slug), encoding="utf-8", newline="\n")
    notebook.write_text(solution(of.number, slug, of.title, exercise=True), encoding="utf-8", newline="\n")
    build(root / "solutions", root / "labs")
    readme.write(root)
    return [
        *(f"made {name}" for name in [*made, f"solutions/{notebook.name}", f"labs/{notebook.name}"]),
        f"store its outputs: make execute NB=solutions/{notebook.name}",
        f".venv/bin/python -m pytest tests/checks/test_labs.py -k {slug}",
        "then put your own exercise in its place",
    ]


def filled(template: str, **words: str) -> str:
    """The text of a file in ``templates/`` with what is the lecture's own in place of the words in capitals."""
    return _filled((TEMPLATES / template).read_text(encoding="utf-8"), words)


def _filled(text: str, words: dict[str, str]) -> str:
    for word, own in words.items():
        text = text.replace(word, own)
    return text


def _notebook(template: str, **words: str) -> Any:
    import nbformat

    notebook = nbformat.read(TEMPLATES / f"{template}.ipynb", as_version=4)
    for cell in notebook.cells:
        cell.source = _filled(cell.source, words)
    return notebook
