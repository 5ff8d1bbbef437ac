"""Two programs side by side: every line of both is shown once, and signs say what differs."""

from __future__ import annotations

from lessons.pictures.side_by_side import side_by_side

LEFT = '"""About left."""\n\nimport one\n\nmodel = start()\nwhole = wrap(model)\nstep(1)\n'
RIGHT = '"""About right."""\n\nimport one\nmodel = start()\nstep(2)\nsave("a < b")\n'


def test_lines_are_the_same_or_differ_or_are_on_one_side_only():
    diff = side_by_side(LEFT, RIGHT, ("left", "right"))
    assert diff.rows == (
        ("", "import one", "import one"),
        ("", "model = start()", "model = start()"),
        ("−", "whole = wrap(model)", ""),
        ("≠", "step(1)", "step(2)"),
        ("+", "", 'save("a < b")'),
    )
    assert repr(diff) == "left and right: 2 lines are the same, 1 differ, 1 are only in left, 1 only in right"


def test_as_html_it_says_in_signs_what_colours_say_and_escapes_the_code():
    html = side_by_side(LEFT, RIGHT, ("left.py", "right.py"))._repr_html_()
    assert "save(&quot;a &lt; b&quot;)" in html and "left.py" in html and "About" not in html
    assert [html.count(f">{sign}</td>") for sign in ("≠", "−", "+")] == [1, 1, 1]
