"""Labs come from solutions: what is marked goes, what remains runs, and the same source gives the same bytes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import labs_support as support
import nbformat
import pytest
import toy_lab
from kernel_support import Kernel

from course.__main__ import main
from course.build import BadMarkers, LabError, build, strip_solution

INVITE = 'raise NotImplementedError("Write your answer here")'


@pytest.fixture
def course(tmp_path: Path) -> Path:
    toy_lab.write(toy_lab.solution(), tmp_path / "solutions" / "98_toy.ipynb")
    return tmp_path


def folders(course: Path) -> tuple[Path, Path]:
    return course / "solutions", course / "labs"


def options(course: Path) -> list[str]:
    return ["--solutions", str(course / "solutions"), "--labs", str(course / "labs")]


# ---------------------------------------------------------------- one cell
@pytest.mark.parametrize(
    ("source", "lab"),
    [
        ("x = 1\n", "x = 1\n"),
        (
            "def f(x):\n    y = x\n    ### BEGIN SOLUTION\n    return y\n    ### END SOLUTION\n",
            f"def f(x):\n    y = x\n    {INVITE}\n",
        ),
        (
            "class A:\n    async def f(\n        self,\n    ):\n"
            "        ### BEGIN SOLUTION\n        pass\n        ### END SOLUTION",
            f"class A:\n    async def f(\n        self,\n    ):\n        {INVITE}",
        ),
        (
            "def f():\n    for i in []:\n        ### BEGIN SOLUTION\n        i\n        ### END SOLUTION\n    return 1",
            f"def f():\n    for i in []:\n        {INVITE}\n    return 1",
        ),
        ("### BEGIN SOLUTION\nx = 1\n### END SOLUTION\ny = 2", "...  # Write your answer here\ny = 2"),
        (
            "### BEGIN SOLUTION: groups = None\ngroups = 1\n### END SOLUTION\ngroups",
            "groups = None  # Write your answer here\ngroups",
        ),
        (
            "%%ranks -n 4\n!ls\n### BEGIN SOLUTION\ndist.barrier()\n### END SOLUTION",
            "%%ranks -n 4\n!ls\n...  # Write your answer here",
        ),
        (
            "if True:\n    ### BEGIN SOLUTION\n    x = 1\n    ### END SOLUTION",
            "if True:\n    ...  # Write your answer here",
        ),
        (
            "%%ranks\ndef f():\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION\n"
            "### BEGIN SOLUTION: f = None\nf()\n### END SOLUTION",
            f"%%ranks\ndef f():\n    {INVITE}\nf = None  # Write your answer here",
        ),
    ],
)
def test_marked_lines_become_an_invitation(source, lab):
    assert strip_solution(source) == lab


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("### BEGIN SOLUTION\nx", "never ends the solution that begins in line 1"),
        ("x\n### END SOLUTION", "ends a solution in line 2 that never began"),
        ("### BEGIN SOLUTION\n### BEGIN SOLUTION\n### END SOLUTION", "opens a second solution in line 2 before"),
        ("## BEGIN SOLUTION\nx\n### END SOLUTION", "has a misspelt marker in line 1: '## BEGIN SOLUTION'"),
        ("x = 1  ### BEGIN SOLUTION\nx\n### END SOLUTION", "has a misspelt marker in line 1"),
        ("### begin solution\nx\n### END SOLUTION", "has a misspelt marker in line 1"),
        ("def f(:\n    ### BEGIN SOLUTION\n    x\n    ### END SOLUTION", "is no Python without its solution (line 1"),
    ],
)
def test_markers_that_do_not_fit_are_named(source, sentence):
    with pytest.raises(BadMarkers, match=sentence.replace("(", r"\(")):
        strip_solution(source)


# ---------------------------------------------------------------- one notebook
def test_a_lab_keeps_cells_and_ids_and_loses_solutions_and_outputs(course):
    build(*folders(course))
    lab = nbformat.read(course / "labs" / "98_toy.ipynb", as_version=4)
    nbformat.validate(lab)
    assert [cell.id for cell in lab.cells] == [
        *("title", "start", "add", "check-add", "mean", "check-mean", "back", "check-back")
    ]
    assert toy_lab.cell(lab, "add").source == f'def add(a, b):\n    """The sum."""\n    {INVITE}'
    assert lab.metadata == {
        "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in lab.cells:
        assert cell.metadata == {}
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None


def test_a_lab_without_a_solution_goes_and_a_learners_copy_stays(course):
    solutions, labs = folders(course)
    build(solutions, labs)
    (labs / "98_toy-Copy1.ipynb").write_text("mine")
    (labs / "97_gone.ipynb").write_text("old")
    assert build(solutions, labs) == [labs / "97_gone.ipynb"]
    assert sorted(path.name for path in labs.iterdir()) == ["98_toy-Copy1.ipynb", "98_toy.ipynb"]


def break_cell(notebook, source):
    toy_lab.cell(notebook, "add").source = source


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda nb: break_cell(nb, "### BEGIN SOLUTION"), r"solutions/98_toy.ipynb, cell 3 \(id add\) never ends"),
        (
            lambda nb: break_cell(nb, "### BEGIN SOLUTION\nx=1\n### END SOLUTION\ncheck.add(add)"),
            r"cell 3 \(id add\) holds a solution and the call of a check",
        ),
        (lambda nb: nb.cells[2].update(id="start"), "cell 3 has the id 'start' of an earlier cell"),
        (lambda nb: nb.cells[2].pop("id"), "cell 3 has no id"),
        (lambda nb: nb.update(nbformat=3), "is no notebook: its format is 3"),
        (lambda nb: nb.cells[2].update(cell_type="strange"), "is no notebook: a cell is malformed"),
        (lambda nb: nb.pop("cells"), "is no notebook"),
    ],
)
def test_a_broken_solution_is_named_in_one_sentence(course, damage, sentence):
    notebook = toy_lab.solution()
    damage(notebook)
    path = course / "solutions" / "98_toy.ipynb"
    path.write_text(json.dumps(notebook))
    with pytest.raises(LabError, match=sentence) as caught:
        build(*folders(course))
    assert "\n" not in str(caught.value)
    assert not list((course / "labs").glob("*"))


# ---------------------------------------------------------------- the command
def test_the_check_names_what_differs_and_changes_nothing(course, capsys):
    assert main(["labs", "--check", *options(course)]) == 1
    assert "98_toy.ipynb is not what" in capsys.readouterr().out
    assert not (course / "labs").exists()
    assert main(["labs", *options(course)]) == 0
    assert "wrote" in capsys.readouterr().out
    assert main(["labs", "--check", *options(course)]) == 0
    lab = course / "labs" / "98_toy.ipynb"
    lab.write_text(lab.read_text().replace("Toy lab", "Edited by hand"))
    assert main(["labs", "--check", *options(course)]) == 1


# ---------------------------------------------------------------- running it
def test_the_unsolved_lab_runs_green_and_the_solution_passes(course, monkeypatch):
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(Path(toy_lab.__file__).parent), os.environ.get("PYTHONPATH", "")])
    )
    monkeypatch.setenv("COURSE_PROGRESS", str(course / "progress.json"))
    build(*folders(course))
    with Kernel() as kernel:
        unsolved = support.shown_verdicts(support.run_notebook(course / "labs" / "98_toy.ipynb", kernel))
        solution = support.shown_verdicts(support.run_notebook(course / "solutions" / "98_toy.ipynb", kernel))
    assert unsolved == dict.fromkeys(("add", "mean_over_ranks", "there_and_back"), "○ not started")
    assert solution == {
        "add": "✓ right: cases: 3",
        "mean_over_ranks": "✓ right: all-reduces: 1",
        "there_and_back": "✓ right: three numbers went there and back",
    }
    assert json.loads((course / "progress.json").read_text())["results"]["toy/add"] == "right"
