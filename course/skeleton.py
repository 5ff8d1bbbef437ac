"""A new lecture and a new lab before anybody has written them: every part is there, with "…" for what is to be said."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from course.notebooks import INTERACTIVE, as_text, execute
from course.outline import Lecture

OPENING = """# {number:02d} · {title}

…

**You will be able to**

- …
- …
- …

**Time:** 5 minutes

**Needs:** a CPU is enough."""
PREDICT = """## …

**Predict.** …?

<details><summary>Answer</summary>

…

</details>"""
CLAIM = """## Claims put to the test

**Claim:** *"…"*

**Experiment.** …"""
CLOSING = """## We learned

- …
- …
- …

{links}
**Sources**

- …: …, 2026."""
LAB = """# Lab {number:02d} · {title}

… They belong to [lecture {number:02d}](../notebooks/{name}.ipynb).

**Time:** 60 minutes

**Needs:** a CPU is enough.

Write your answers where the cells say so, and run the check below each. A check shows `○` not started, `✗` wrong with a
hint, or `✓` right with figures. You may run it as often as you like."""


def lecture(number: int, slug: str, title: str, before: Lecture, following: Lecture | None, lab: bool) -> str:
    """The text of a lecture that keeps the habits, executed.

    Args:
        before: the lecture in front of it, whose stage and needs it shares.
        following: the one behind it, as it is numbered now.
        lab: whether to link to a lab.
    """
    name = f"{number:02d}_{slug}.ipynb"
    links = f"**Lab:** [{number:02d} · {title}](../labs/{name}).\n" if lab else ""
    if following:
        later = f"{number + 1:02d}"
        links += f"\n**Next:** [{later} · {following.title}]({later}_{following.slug}.ipynb).\n"
    notebook = cells(
        OPENING.format(number=number, title=title),
        ("from ipywidgets import interact\n\nfrom utils import draw", []),
        *[PREDICT] * 3,
        ('interact(lambda ranks: print(ranks, "ranks"), ranks=(1, 8));', [INTERACTIVE, "nbval-ignore-output"]),
        ("draw.words()", []),
        CLAIM,
        ("1 + 1", []),
        "**Verdict: …** …",
        CLOSING.format(links=links),
    )
    notebook.metadata["course"] = {"stage": before.stage, "card": "…", "teaches": "…"}
    if before.needs:
        notebook.metadata["course"]["needs"] = before.needs
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_text(as_text(notebook), encoding="utf-8")
        execute(path)
        return path.read_text(encoding="utf-8")


def solution(number: int, slug: str, title: str) -> str:
    """The text of a solution without any exercise."""
    return as_text(cells(LAB.format(number=number, title=title, name=f"{number:02d}_{slug}")))


def cells(*parts: str | tuple[str, list[str]]) -> Any:
    """A notebook. Texts become Markdown; a pair of a source and its tags becomes code."""
    from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

    made = [
        new_markdown_cell(part)
        if isinstance(part, str)
        else new_code_cell(part[0], metadata={"tags": part[1]} if part[1] else {})
        for part in parts
    ]
    for place, cell in enumerate(made):
        cell["id"] = f"part-{place}"
    return new_notebook(cells=made)
