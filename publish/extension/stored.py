"""What stored notebooks need to be pages: folded answers, IPython's words in code, outputs that are not translated.

``<details><summary>Answer</summary>`` … ``</details>`` becomes a node whose summary is a text. Left as raw HTML it
would look the same, but no catalogue of translations would have its summary.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

_OPEN = re.compile(r"\s*<details>\s*<summary>([^<]+)</summary>\s*")


class Fold(nodes.General, nodes.Element):
    """An answer that the reader unfolds."""


class Summary(nodes.General, nodes.TextElement):
    """What is seen of a folded answer."""


class Stored(SphinxTransform):
    """Before texts are collected for translation."""

    default_priority = 5

    def apply(self, **_: Any) -> None:
        for block in self.document.findall(nodes.container):
            classes = block["classes"]
            if "cell_input" in classes:
                for code in block.findall(nodes.literal_block):
                    code["language"] = "ipython3"  # magics, and lines for the terminal
            elif "cell_output" in classes:
                for text in block.findall(nodes.TextElement):
                    text.source = None  # Sphinx takes it for no text of this page, so catalogues leave it out
        for opening in list(self.document.findall(nodes.raw)):
            if (found := _OPEN.fullmatch(opening.astext())) and opening.parent is not None:
                _fold(opening, found[1], self.document["source"])


def _fold(opening: nodes.raw, words: str, source: str) -> None:
    parent, start = opening.parent, opening.parent.index(opening)
    siblings = parent.children[start + 1 :]
    end = next(
        (i for i, one in enumerate(siblings) if isinstance(one, nodes.raw) and "</details>" in one.astext()), None
    )
    if end is None:
        return  # it is closed elsewhere: leave it as it is
    summary = Summary(words, words)
    summary.source, summary.line = opening.source or source, opening.line or 0
    fold = Fold("", summary)
    for one in siblings[: end + 1]:
        parent.remove(one)
    fold += siblings[:end]
    parent[start] = fold


def setup(app: Sphinx) -> None:
    app.add_node(Fold, html=(_writes("<details class='fold'>"), _writes("</details>")))
    app.add_node(Summary, html=(_writes("<summary>"), _writes("</summary>")))
    app.add_transform(Stored)


def _writes(text: str) -> Any:
    return lambda translator, node: translator.body.append(text)
