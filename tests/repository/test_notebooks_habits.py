"""All notebooks keep the repository's habits, and each rule about them is able to fail."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lecture_rules
import nbformat
import notebook_rules as rules
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course import outline, readme
from course.map import course_map
from course.notebooks import METADATA, ROOT, WIDGET, as_text

EXECUTED = sorted([*(ROOT / "notebooks").glob("*.ipynb"), *(ROOT / "solutions").glob("*.ipynb")])
LECTURES = sorted((ROOT / "notebooks").glob("*.ipynb"))
LABS = sorted((ROOT / "labs").glob("*.ipynb"))
TEXTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])

OF_EXECUTED: list[rules.Rule] = [
    rules.counts_from_one,
    rules.errors_as_meant,
    rules.no_machine_paths,
    rules.pictures_have_words,
    rules.fences_stand_alone,
    rules.has_no_empty_text,
    rules.stored_by_make_execute,
]
OF_LECTURES: list[rules.Rule] = [
    lecture_rules.opens_properly,
    lecture_rules.promises_its_minutes,
    lecture_rules.describes_itself,
    lecture_rules.asks_for_predictions,
    lecture_rules.tests_claims,
    lecture_rules.has_an_interactive_figure,
    lecture_rules.ends_properly,
]


def _name(value: Any) -> str:
    return f"{value.parent.name}/{value.name}" if isinstance(value, Path) else getattr(value, "__name__", str(value))


def _read(path: Path) -> Any:
    return nbformat.read(path, as_version=nbformat.NO_CONVERT)


def _assert_none(faults: list[str]) -> None:
    assert not faults, "\n".join(faults)


# ---------------------------------------------------------------------- the repository's notebooks
@pytest.mark.parametrize("path", EXECUTED, ids=_name)
@pytest.mark.parametrize("rule", OF_EXECUTED, ids=_name)
def test_executed_notebooks(rule: rules.Rule, path: Path) -> None:
    _assert_none(rule(_read(path)))


@pytest.mark.parametrize("path", LECTURES, ids=_name)
@pytest.mark.parametrize("rule", OF_LECTURES, ids=_name)
def test_lectures_have_their_parts(rule: rules.Rule, path: Path) -> None:
    _assert_none(rule(_read(path)))


@pytest.mark.parametrize("path", LECTURES, ids=_name)
def test_lectures_link_to_their_labs(path: Path) -> None:
    _assert_none(lecture_rules.links_to_its_lab(_read(path), path.name, ROOT / "labs"))


@pytest.mark.parametrize("path", [*EXECUTED, *LABS], ids=_name)
def test_numbers_are_those_of_the_files(path: Path) -> None:
    _assert_none(rules.number_of_its_file(_read(path), path))


@pytest.mark.parametrize("path", [*EXECUTED, *LABS], ids=_name)
def test_links_and_size(path: Path) -> None:
    _assert_none(rules.links_lead_somewhere(_read(path), path.parent) + rules.small_enough(path))


@pytest.mark.parametrize("path", LABS, ids=_name)
@pytest.mark.parametrize("rule", [rules.unsolved, rules.no_machine_paths, rules.pictures_have_words], ids=_name)
def test_labs(rule: rules.Rule, path: Path) -> None:
    _assert_none(rule(_read(path)))


@pytest.mark.parametrize("path", TEXTS, ids=_name)
def test_links_in_texts(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    _assert_none(rules.broken_links(text, path.parent) + rules.misnumbered_links(text))


def test_lectures_are_numbered_from_zero_and_labs_and_solutions_belong_to_them() -> None:
    _assert_none(outline.faults())


def test_the_readmes_table_is_what_the_notebooks_give() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.with_table(text) == text, "run `python -m course readme`"


def test_the_lecture_that_shows_the_course_map_shows_todays() -> None:
    shown = [
        output.data["text/html"]
        for cell in _read(outline.notebook(outline.FIRST)).cells
        if "course_map()" in cell.source
        for output in cell.get("outputs", [])
    ]
    assert shown == [course_map()], f"make execute NB=notebooks/00_{outline.FIRST}.ipynb"


# ---------------------------------------------------------------------- the rules themselves
OPENING = """# 42 · Toy

A paragraph.

**You will be able to**

- count,
- read,
- write, on two
  lines.

**Time:** 10 minutes

**Needs:** nothing."""
FOLD = "**Predict.** What?\n\n<details><summary>Answer</summary>\n\nThis.\n\n</details>"
CLOSING = """## We learned

- Counting.
- Reading.
- Writing.

**Sources**

- A. Author: [A paper](https://example.org/2006), 2020. Section 2."""


def _toy() -> Any:
    """A lecture without faults."""
    picture = new_output(
        "display_data", data={"text/html": '<img alt="A line." src="data:image/png;base64,/tmp/root">'}
    )
    cells = [
        new_markdown_cell(OPENING),
        new_code_cell("print(1)", outputs=[new_output("stream", name="stdout", text="1\n")]),
        *[new_markdown_cell(FOLD) for _ in range(3)],
        new_code_cell("slider()", outputs=[picture], metadata={"tags": ["interactive", "nbval-ignore-output"]}),
        new_markdown_cell('## Claims put to the test\n\n**Claim:** "One is one."\n\n**Experiment.** Look.'),
        new_code_cell(
            "1 / 0",
            outputs=[new_output("error", ename="ZeroDivisionError", evalue="by zero", traceback=["\x1b[31mZero"])],
            metadata={"tags": ["raises-exception"]},
        ),
        new_markdown_cell("**Verdict: right.** It is. See https://example.org/home/tmp, `![](x)` and and/or."),
        new_markdown_cell(CLOSING),
    ]
    for number, cell in enumerate([cell for cell in cells if cell.cell_type == "code"], start=1):
        cell.execution_count = number
    course = {"stage": "Play", "card": "toys", "teaches": "playing"}
    notebook = new_notebook(cells=cells, metadata={**METADATA, "course": course})
    return nbformat.reads(as_text(notebook), as_version=nbformat.NO_CONVERT)


def _replace(cell: int, old: str, new: str) -> Callable[[Any], None]:
    def change(notebook: Any) -> None:
        assert old in notebook.cells[cell].source
        notebook.cells[cell].source = notebook.cells[cell].source.replace(old, new)

    return change


def _set(cell: int, **values: Any) -> Callable[[Any], None]:
    return lambda notebook: notebook.cells[cell].update(nbformat.from_dict(values))


def _output(cell: int, *args: Any, **kwargs: Any) -> Callable[[Any], None]:
    return lambda notebook: notebook.cells[cell].outputs.append(new_output(*args, **kwargs))


def _shown(mime: str, data: str, **metadata: Any) -> Callable[[Any], None]:
    return _output(1, "display_data", data={mime: data}, metadata=metadata)


def _drop(cell: int) -> Callable[[Any], None]:
    return lambda notebook: notebook.cells.pop(cell)


BROKEN: list[tuple[rules.Rule, Callable[[Any], None], str]] = [
    (rules.counts_from_one, _set(1, execution_count=None), "never run"),
    (rules.counts_from_one, _set(1, execution_count=2), "not 1, 2, 3"),
    (rules.errors_as_meant, _set(7, metadata={}), "has no tag"),
    (rules.errors_as_meant, _set(1, metadata={"tags": ["raises-exception"]}), "stores no error"),
    (
        rules.errors_as_meant,
        _output(1, "stream", name="stderr", text="Traceback (most recent call last):\n"),
        "prints a traceback",
    ),
    *[
        (rules.no_machine_paths, _output(1, "stream", name="stdout", text=f"in {path}\n"), "path of a machine")
        for path in ("/home/ada/x", "/root", "/work/y", "/tmp", "C:\\Users\\ada", "/Users/ada", f"x={ROOT}/utils")
    ],
    (rules.no_machine_paths, _replace(1, "print(1)", "open('/tmp/x')"), "path of a machine"),
    (rules.no_machine_paths, _set(0, source="# In\n\n    /usr/lib/python3/site-packages/torch"), "path of a machine"),
    (rules.no_machine_paths, _shown("text/html", "<p>/home/ada</p>"), "path of a machine"),
    (rules.pictures_have_words, _shown("image/png", "iVBO"), "without text"),
    (rules.pictures_have_words, _shown("image/jpeg", "iVBO", **{"image/jpeg": {"alt": " "}}), "without text"),
    (rules.pictures_have_words, _shown("text/html", "<img alt='' src='x.png'>"), "without alt"),
    (rules.pictures_have_words, _shown("text/html", "<svg><path/></svg>"), "without <title>"),
    (rules.pictures_have_words, _shown("image/svg+xml", "<svg><path/></svg>"), "without <title>"),
    (rules.pictures_have_words, _replace(0, "A paragraph.", "![](x.svg)"), "without text"),
    (rules.pictures_have_words, _replace(0, "A paragraph.", "<img src='x.svg'>"), "without alt"),
    (rules.stored_by_make_execute, _shown(WIDGET, "model"), "stores a widget"),
    (rules.stored_by_make_execute, _set(1, metadata={"execution": {"iopub.status.busy": "now"}}), "make execute"),
    (rules.stored_by_make_execute, _output(1, "stream", name="stdout", text="2\n"), "make execute"),
    (rules.stored_by_make_execute, lambda n: n.metadata.language_info.update(version="3.11.7"), "make execute"),
    (rules.stored_by_make_execute, lambda n: n.metadata.update(widgets={}), "make execute"),
    (lecture_rules.describes_itself, lambda n: n.metadata.pop("course"), "lack stage and card and teaches"),
    (lecture_rules.describes_itself, lambda n: n.metadata.course.update(card=" "), "lack card"),
    (lecture_rules.describes_itself, lambda n: n.metadata.course.update(need="x"), "a strange 'need'"),
    (lecture_rules.opens_properly, _replace(0, "# 42 · Toy", "Toy"), "title"),
    (lecture_rules.opens_properly, _replace(0, "A paragraph.\n\n", ""), "no paragraph"),
    (lecture_rules.opens_properly, _replace(0, "- read,\n", ""), "3 to 5"),
    (lecture_rules.opens_properly, _replace(0, "- read,\n", "- read,\n" * 4), "3 to 5"),
    (lecture_rules.opens_properly, _replace(0, "You will be able to", "Objectives"), "3 to 5"),
    (lecture_rules.opens_properly, _replace(0, "**Time:** 10 minutes", "Time: 10 minutes"), "Time"),
    (lecture_rules.opens_properly, _replace(0, "**Needs:** nothing.", ""), "Needs"),
    (lecture_rules.promises_its_minutes, _replace(0, "**Time:** 10", "**Time:** 15"), "15 minutes, and 10 follow"),
    (lecture_rules.promises_its_minutes, _replace(0, "A paragraph.", "word " * 4000), "10 minutes, and 60 follow"),
    (
        lecture_rules.promises_its_minutes,
        lambda n: [_replace(0, "A paragraph.", "word " * 6_800)(n), _replace(0, "Time:** 10", "Time:** 95")(n)],
        "where to pause",
    ),
    (lecture_rules.asks_for_predictions, _drop(2), "2 predictions"),
    (lecture_rules.asks_for_predictions, _replace(2, "</details>", ""), "a fold is not"),
    (lecture_rules.asks_for_predictions, _replace(2, "<summary>Answer</summary>", ""), "a fold is not"),
    (lecture_rules.tests_claims, _replace(6, "## Claims put to the test", "## Claims"), "is missing"),
    (lecture_rules.tests_claims, _replace(8, "**Verdict", "**Result"), "each claim has a verdict"),
    (lecture_rules.tests_claims, _drop(7), "no experiment"),
    (lecture_rules.has_an_interactive_figure, _set(5, metadata={}), "no code cell has the tag"),
    (lecture_rules.has_an_interactive_figure, _set(5, outputs=[]), "no static picture"),
    (lecture_rules.ends_properly, _replace(9, "## We learned", "## Summary"), "last section"),
    (lecture_rules.ends_properly, lambda n: n.cells.append(new_markdown_cell("## More")), "last section"),
    (lecture_rules.ends_properly, _replace(9, "- Reading.\n", ""), "one mirrors the other"),
    (lecture_rules.ends_properly, _replace(9, "**Sources**", "Sources"), "are missing at the end"),
    (lecture_rules.ends_properly, _replace(9, ", 2020.", "."), "without its year"),
    (rules.has_no_empty_text, _set(9, source=" \n"), "no text"),
    (rules.fences_stand_alone, _replace(9, "- Reading", "```python a = 1 ```\n\n- Reading"), "stands alone"),
    (rules.unsolved, lambda n: None, "outputs"),
]


@pytest.mark.parametrize("rule", [*OF_EXECUTED, *OF_LECTURES], ids=_name)
def test_a_lecture_without_faults_passes(rule: rules.Rule) -> None:
    assert rule(_toy()) == []


@pytest.mark.parametrize(
    ("rule", "spoil", "sentence"), BROKEN, ids=[f"{_name(rule)}-{number}" for number, (rule, *_) in enumerate(BROKEN)]
)
def test_each_rule_finds_its_fault(rule: rules.Rule, spoil: Callable[[Any], None], sentence: str) -> None:
    notebook = copy.deepcopy(_toy())
    spoil(notebook)
    assert sentence in "\n".join(rule(notebook))


def test_pictures_of_the_course_have_words() -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    from utils.draw.picture import from_figure, from_svg

    for picture in (from_figure(Figure(), "A line."), from_svg("<svg></svg>", "A circle.")):
        notebook = _toy()
        notebook.cells[1].outputs = [new_output("display_data", data=picture._repr_mimebundle_())]
        assert rules.pictures_have_words(notebook) == []


def test_links_are_looked_up(tmp_path: Path) -> None:
    good = f"[a](../README.md#x), [b](https://example.org/nowhere), [c](#here), `[d](gone.md)`\n{FOLD}"
    bad = "[lab](../labs/99_gone.ipynb) ![a picture](gone.svg) <a href='gone.html'>x</a> <img alt='x' src='gone.png'>"
    assert rules.broken_links(good, ROOT / "notebooks") == []
    assert len(rules.broken_links(bad, ROOT / "notebooks")) == 4
    assert len(rules.broken_links("[outside](../../x.md)", ROOT / "notebooks")) == 1
    notebook = _toy()
    notebook.cells[0].source += bad
    assert len(rules.links_lead_somewhere(notebook, ROOT / "notebooks")) == 4


def test_a_lecture_with_a_lab_must_link_to_it(tmp_path: Path) -> None:
    (tmp_path / "42_toy.ipynb").touch()
    notebook = _toy()
    assert "no link" in lecture_rules.links_to_its_lab(notebook, "42_toy.ipynb", tmp_path)[0]
    notebook.cells[-1].source += "\n\nNow the [lab](../labs/42_toy.ipynb)."
    assert lecture_rules.links_to_its_lab(notebook, "42_toy.ipynb", tmp_path) == []
    assert lecture_rules.links_to_its_lab(_toy(), "43_no_lab.ipynb", tmp_path) == []


def test_a_large_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.ipynb"
    path.write_bytes(b" " * rules.MOST_BYTES)
    assert rules.small_enough(path) == []
    path.write_bytes(b" " * (rules.MOST_BYTES + 1))
    assert f"{rules.MOST_BYTES + 1:,}" in rules.small_enough(path)[0]


def test_a_number_that_is_not_the_files_is_found() -> None:
    notebook = _toy()
    notebook.cells[
        -1
    ].source += "\n\n[lecture 41](../notebooks/41_a.ipynb), [43 · B](43_b.ipynb), [page 1](42_toy.ipynb)"
    assert rules.number_of_its_file(notebook, ROOT / "notebooks" / "42_toy.ipynb") == []
    assert rules.number_of_its_file(notebook, ROOT / "notebooks" / "41_toy.ipynb") == ["its heading is not '# 41 · …'"]
    assert rules.number_of_its_file(notebook, ROOT / "labs" / "42_toy.ipynb") == ["its heading is not '# Lab 42 · …'"]
    notebook.cells[-1].source += " [lecture 41](42_toy.ipynb) and [Lab 42](../labs/43_b.ipynb)"
    assert len(rules.number_of_its_file(notebook, ROOT / "notebooks" / "42_toy.ipynb")) == 2


def test_labs_without_outputs_pass() -> None:
    notebook = new_notebook(cells=[new_code_cell("print(1)")])
    assert rules.unsolved(notebook) == []
    notebook.cells[0].execution_count = 1
    assert "execution count" in rules.unsolved(notebook)[0]
