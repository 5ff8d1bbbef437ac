"""What this repository asks of its lectures, beyond what it asks of every notebook: the parts that each must have.

Each rule is a function from a notebook to sentences about its faults. CONTRIBUTING.md tells authors about them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from notebook_rules import code_cells, markdown_cells, readable, without_code

from course import outline
from course.notebooks import INTERACTIVE

FEWEST_PREDICTIONS = 3
OBJECTIVES = range(3, 6)
# What a lecture promises: words and lines of code that a newcomer, often in a second language, understands in a
# minute, a minute for each prediction, and five to run it.
WORDS_A_MINUTE, LINES_A_MINUTE, TO_RUN = 80, 18, 5
LONGEST_SITTING = 90


def opens_properly(notebook: Any) -> list[str]:
    """Title, a paragraph, objectives, minutes, needs: in the first cell."""
    first = notebook.cells[0].source if notebook.cells and notebook.cells[0].cell_type == "markdown" else ""
    faults = []
    if not re.match(r"# \d\d · \S", first):
        faults.append("the first cell is not Markdown that begins with a title such as '# 06 · DDP and bucketing'")
    if not re.match(r"#[^\n]*\n\s*\n[^\s*#|-]", first):
        faults.append("no paragraph follows the title")
    if (count := len(objectives(notebook))) not in OBJECTIVES:
        faults.append(
            f"'**You will be able to**' and then a list of 3 to 5 is asked for in the first cell, not {count}"
        )
    if not re.search(r"\*\*Time:\*\* \d+ minutes", first):
        faults.append("'**Time:** NN minutes' is missing in the first cell")
    if not re.search(r"\*\*Needs:\*\* \S", first):
        faults.append("'**Needs:** …' is missing in the first cell")
    return faults


def promises_its_minutes(notebook: Any) -> list[str]:
    """They follow from what there is to read and to think about; what is too long says where to pause."""
    first = notebook.cells[0].source
    stated = re.search(r"\*\*Time:\*\* (\d+)(.*)", first)
    text = "\n".join(cell.source for _, cell in markdown_cells(notebook)).partition("**Sources**")[0]
    lines = sum(bool(line.strip()) for _, cell in code_cells(notebook) for line in cell.source.splitlines())
    needed = len(text.split()) / WORDS_A_MINUTE + lines / LINES_A_MINUTE + text.count("**Predict") + TO_RUN
    minutes = max(5, 5 * round(needed / 5))
    if stated and int(stated[1]) != minutes:
        return [f"it promises {stated[1]} minutes, and {minutes} follow from its words, code and predictions"]
    if minutes > LONGEST_SITTING and "two sittings" not in stated[2]:
        return [f"more than {LONGEST_SITTING} minutes, and no 'in two sittings' that says where to pause"]
    return []


def describes_itself(notebook: Any) -> list[str]:
    """Where it stands on the map of the course, and what the README's table says of it."""
    return outline.not_described(notebook.metadata)


def asks_for_predictions(notebook: Any) -> list[str]:
    folds = 0
    for _, cell in markdown_cells(notebook):
        text = without_code(cell.source)
        opened, closed = len(re.findall(r"<details>\s*<summary>[^<]+</summary>", text)), text.count("</details>")
        if text.count("<details") != opened or opened != closed:
            return ["a fold is not '<details><summary>…</summary>', a blank line, the answer, '</details>'"]
        folds += opened
    return [] if folds >= FEWEST_PREDICTIONS else [f"{folds} predictions; {FEWEST_PREDICTIONS} are asked for"]


def tests_claims(notebook: Any) -> list[str]:
    section = _section(notebook, "Claims put to the test")
    if not section:
        return ["the section '## Claims put to the test' is missing"]
    text = "\n".join(cell.source for cell in section if cell.cell_type == "markdown")
    claims, verdicts = text.count("**Claim"), text.count("**Verdict")
    if not claims or claims != verdicts:
        return [f"{claims} '**Claim**' and {verdicts} '**Verdict**' in the section of claims; each claim has a verdict"]
    if not any(cell.cell_type == "code" for cell in section):
        return ["the section of claims has no experiment: no code cell"]
    return []


def has_an_interactive_figure(notebook: Any) -> list[str]:
    """A cell with the tag, and a picture stored with it or with the next: for GitHub and for paper."""
    code = [cell for _, cell in code_cells(notebook)]
    places = [i for i, cell in enumerate(code) if INTERACTIVE in cell.metadata.get("tags", [])]
    if not places:
        return [f"no code cell has the tag {INTERACTIVE}"]
    faults = []
    for place in places:
        outputs = [output for cell in code[place : place + 2] for output in cell.outputs]
        if not any("<img" in t or "<svg" in t for o in outputs for _, t in readable(o)):
            faults.append("the interactive figure has no static picture beneath it")
    return faults


def ends_properly(notebook: Any) -> list[str]:
    """What we learned mirrors the objectives; sources with their years."""
    last = _section(notebook, "We learned")
    text = "\n".join(cell.source for cell in last)
    if not last or notebook.cells[-1] is not last[-1]:
        return ["the last section is not '## We learned'"]
    before, sign, sources = text.partition("**Sources**")
    faults = []
    learned, promised = len(_bullets(before)), len(objectives(notebook))
    if learned != promised:
        faults.append(f"'We learned' has {learned} points, and the objectives are {promised}: one mirrors the other")
    if not sign or not _bullets(sources):
        faults.append("'**Sources**' and a list are missing at the end")
    faults += [
        f"a source without its year: {one.strip()[:60]}"
        for one in _bullets(sources)
        if not re.search(r"\b(19|20)\d\d\b", re.sub(r"\(http[^)]*\)", "", one))
    ]
    return faults


def links_to_its_lab(notebook: Any, name: str, labs: Path) -> list[str]:
    if not (labs / name).exists() or any(f"](../labs/{name})" in cell.source for _, cell in markdown_cells(notebook)):
        return []
    return [f"it has a lab, and no link to it: [lab](../labs/{name})"]


def objectives(notebook: Any) -> list[str]:
    first = notebook.cells[0].source if notebook.cells else ""
    after = re.split(r"^\*\*You will be able to\*\*\s*$", first, maxsplit=1, flags=re.MULTILINE)
    return _bullets(re.split(r"\n\s*\n(?![-* ] )", after[1].strip())[0]) if len(after) == 2 else []


def _section(notebook: Any, heading: str) -> list[Any]:
    """The cells from this heading (level 2) to before the next."""
    cells: list[Any] = []
    inside = False
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and cell.source.startswith("## "):
            inside = cell.source.splitlines()[0].strip() == f"## {heading}"
        if inside:
            cells.append(cell)
    return cells


def _bullets(text: str) -> list[str]:
    """Items of lists on the first level, each with its continuation lines."""
    return re.findall(r"^[-*] .*(?:\n {1,}\S.*)*", text, re.MULTILINE)
