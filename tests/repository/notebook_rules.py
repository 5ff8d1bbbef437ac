"""What this repository asks of its notebooks: each rule is a function from a notebook to sentences about its faults.

A notebook without faults gives empty lists. ``test_notebooks_habits.py`` applies the rules to all notebooks, and tests
each rule on a notebook that breaks it.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from course.notebooks import MAY_RAISE, ROOT, WIDGET, as_text

Rule = Callable[[Any], list[str]]

MOST_BYTES = 800_000  # an interactive figure holds all its pictures, so that it needs no kernel
_DATA_URL = re.compile(r"data:[\w/+.-]+;base64,[A-Za-z0-9+/=\s]*")
_MACHINE_PATH = re.compile(
    r"(?<![\w.:/~-])/(?:home|root|work|tmp)\b(?!\.)|/Users/|[A-Za-z]:\\+Users|/var/folders/|ipykernel_\d+"
    r"|/[^\s\"'()]*/site-packages/"
)
_FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_INLINE_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)


# ---------------------------------------------------------------------- of every executed notebook
def counts_from_one(notebook: Any) -> list[str]:
    """nbval's strict mode compares nothing in a notebook without execution counts, and passes."""
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    if None in counts:
        return [f"{counts.count(None)} code cells were never run (or are empty): make execute NB=…"]
    if counts != list(range(1, len(counts) + 1)):
        return [f"the execution counts are not 1, 2, 3, … but {counts}: run the notebook from top to bottom"]
    return []


def errors_as_meant(notebook: Any) -> list[str]:
    faults = []
    for number, cell in code_cells(notebook):
        errors = [output for output in cell.outputs if output.output_type == "error"]
        meant = MAY_RAISE in cell.metadata.get("tags", [])
        if errors and not meant:
            faults.append(f"cell {number} stores the error {errors[0].ename}, and has no tag {MAY_RAISE}")
        if meant and not errors:
            faults.append(f"cell {number} has the tag {MAY_RAISE}, and stores no error")
        if not meant and any("Traceback (most recent call last)" in o.get("text", "") for o in cell.outputs):
            faults.append(f"cell {number} prints a traceback")
    return faults


def no_machine_paths(notebook: Any) -> list[str]:
    faults = []
    for number, cell in enumerate(notebook.cells, start=1):
        texts = [cell.source, *(text for output in cell.get("outputs", []) for _, text in readable(output))]
        for text in texts:
            text = _DATA_URL.sub("", text)
            if match := re.search(re.escape(str(ROOT)), text) or _MACHINE_PATH.search(text):
                start, end = max(0, match.start() - 20), match.end() + 20
                faults.append(f"cell {number} names a path of a machine: …{text[start:end]!r}…")
                break
    return faults


def pictures_have_words(notebook: Any) -> list[str]:
    """A picture is for those who see it; its alternative text is for all others."""
    faults = []
    for number, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type == "markdown":
            text = without_code(cell.source)
            faults += [f"cell {number}: an image without text: {m}" for m in re.findall(r"!\[\s*\]\([^)]*\)", text)]
            faults += [f"cell {number}: {fault}" for fault in _silent_pictures(text)]
        for output in cell.get("outputs", []):
            for mime, text in readable(output):
                if mime == "text/html":
                    faults += [f"cell {number}: {fault}" for fault in _silent_pictures(text)]
            for mime, data in output.get("data", {}).items():
                if mime == "image/svg+xml":
                    faults += [f"cell {number}: {fault}" for fault in _silent_pictures("".join(data))]
                elif mime.startswith("image/") and not output.metadata.get(mime, {}).get("alt", "").strip():
                    faults.append(f"cell {number} shows {mime} without text: utils.draw.show(figure, alt=…)")
    return faults


def fences_stand_alone(notebook: Any) -> list[str]:
    """A line of three backquotes opens or closes code; in the middle of a line, code becomes prose."""
    return [
        f"cell {number}: ``` stands alone on its line, once before and once after the code"
        for number, cell in markdown_cells(notebook)
        if cell.source.count("```") != 2 * len(re.findall(r"^```\w*\n(?:.*\n)*?```$", cell.source, re.MULTILINE))
    ]


def has_no_empty_text(notebook: Any) -> list[str]:
    return [f"cell {number} has no text" for number, cell in markdown_cells(notebook) if not cell.source.strip()]


def stored_by_make_execute(notebook: Any) -> list[str]:
    """No timing, no widget state, streams joined: what only adds noise to a diff."""
    faults = [
        f"cell {n} stores a widget" for n, cell in code_cells(notebook) for o in cell.outputs if WIDGET in _data(o)
    ]
    if not faults and as_text(copy.deepcopy(notebook)) != plain_text(notebook):
        faults.append("it is not stored as `make execute NB=…` stores it")
    return faults


def links_lead_somewhere(notebook: Any, folder: Path) -> list[str]:
    return [
        f"cell {number}: {fault}"
        for number, cell in enumerate(notebook.cells, start=1)
        if cell.cell_type == "markdown"
        for fault in broken_links(cell.source, folder)
    ]


def number_of_its_file(notebook: Any, path: Path) -> list[str]:
    """The number in the heading, and numbers in links."""
    lab = "Lab " if path.parent.name in ("labs", "solutions") else ""
    first = notebook.cells[0].source if notebook.cells else ""
    faults = (
        [] if first.startswith(f"# {lab}{path.name[:2]} · ") else [f"its heading is not '# {lab}{path.name[:2]} · …'"]
    )
    return faults + [fault for _, cell in markdown_cells(notebook) for fault in misnumbered_links(cell.source)]


def small_enough(path: Path) -> list[str]:
    size = path.stat().st_size
    return [f"it has {size:,} bytes; {MOST_BYTES:,} is the most"] if size > MOST_BYTES else []


# ---------------------------------------------------------------------- of labs
def unsolved(notebook: Any) -> list[str]:
    """A lab comes without outputs and counts."""
    return [
        f"cell {number} has {'outputs' if cell.outputs else 'an execution count'}"
        for number, cell in code_cells(notebook)
        if cell.outputs or cell.execution_count is not None
    ]


# ---------------------------------------------------------------------- of Markdown files
def broken_links(markdown: str, folder: Path) -> list[str]:
    """Links and images to files of the repository that do not exist; ``folder`` is where the text is."""
    text = without_code(markdown)
    targets = re.findall(r"\]\(\s*<?([^)\s>]+)[^)]*\)", text) + re.findall(r"(?:href|src)=[\"']([^\"']+)", text)
    faults = []
    for target in targets:
        path = target.split("#")[0].split("?")[0]
        if not path or re.match(r"[a-z][a-z0-9+.-]+:", target):
            continue
        there = (folder / path.replace("%20", " ")).resolve()
        if not there.exists() or not there.is_relative_to(ROOT):
            faults.append(f"the link to {target} leads nowhere")
    return faults


def misnumbered_links(markdown: str) -> list[str]:
    """Links such as [lecture 42](42_toy.ipynb) and [42 · Toy](42_toy.ipynb) whose number is not their file's."""
    links = re.findall(r"\[(?:\w+\s+)?(\d\d)\b[^\]]*\]\((?:[^)\s]*/)?(\d\d)_\w+\.ipynb\)", markdown)
    return [f"a link says {said} and leads to {number}" for said, number in links if said != number]


def without_code(markdown: str) -> str:
    return _INLINE_CODE.sub("", _FENCED.sub("", markdown))


def plain_text(notebook: Any) -> str:
    """The notebook as it would be written without any change."""
    import nbformat

    return nbformat.writes(notebook, version=nbformat.NO_CONVERT).rstrip("\n") + "\n"


class _Pictures(HTMLParser):
    """Finds pictures that say nothing to those who cannot see them."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self._svg_open = self._titled = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag == "img" and not (named.get("alt") or "").strip():
            self.faults.append("an <img> without alt")
        elif tag == "svg" and not self._svg_open:
            self._svg_open, self._titled = True, False
        elif tag == "title" and self._svg_open:
            self._titled = True

    def handle_endtag(self, tag: str) -> None:
        if tag == "svg" and self._svg_open:
            if not self._titled:
                self.faults.append("an <svg> without <title>")
            self._svg_open = False


def _silent_pictures(html: str) -> list[str]:
    parser = _Pictures()
    parser.feed(html)
    parser.close()
    return parser.faults


def _data(output: Any) -> dict[str, Any]:
    return dict(output.get("data", {}))


def code_cells(notebook: Any) -> Iterator[tuple[int, Any]]:
    return ((n, cell) for n, cell in enumerate(notebook.cells, start=1) if cell.cell_type == "code")


def markdown_cells(notebook: Any) -> Iterator[tuple[int, Any]]:
    return ((n, cell) for n, cell in enumerate(notebook.cells, start=1) if cell.cell_type == "markdown")


def readable(output: Any) -> Iterator[tuple[str, str]]:
    """Everything readable in an output, with its kind."""
    if output.output_type == "stream":
        yield "stream", output.text
    elif output.output_type == "error":
        yield "error", "\n".join([output.evalue, *output.traceback])
    else:
        for mime, data in output.data.items():
            if mime not in ("image/png", "image/jpeg") and isinstance(data, str):
                yield mime, data
