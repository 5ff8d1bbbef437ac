"""What this book adds to Sphinx.

stored.py    notebooks: folded answers whose summary can be translated, outputs that no catalogue has
parts.py     directives of docs/*.md: a stored cell, the table of lectures, a magic's help
lexer.py     colours for cells on ranks
mathml.py    formulas as MathML, for which a page needs neither a script nor a network
addresses.py "open in …", "edit", languages: what the templates show of a page
"""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx

from extension import addresses, lexer, mathml, parts, stored


def setup(app: Sphinx) -> dict[str, Any]:
    for module in (addresses, lexer, mathml, parts, stored):
        module.setup(app)
    app.connect("autodoc-process-docstring", _first_paragraph)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _first_paragraph(app: Sphinx, what: str, name: str, module: Any, options: Any, lines: list[str]) -> None:
    """What a package says of its files is for those who read the code."""
    if what == "module" and "" in lines:
        del lines[lines.index("") :]
