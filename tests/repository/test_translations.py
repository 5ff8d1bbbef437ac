"""The web book's translations, as far as they can be judged without what `make book` installs (see test_book.py)."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from babel.messages.pofile import read_po
from notebook_rules import markdown_cells

from course import outline

TRANSLATED = sorted((outline.ROOT / "publish" / "locale").glob("*/notebooks/*.po"))


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("file", TRANSLATED, ids=lambda file: f"{file.parent.parent.name}-{file.stem}")
def test_what_is_translated_still_stands_in_the_lecture(file: Path) -> None:
    """`make book-strings` marks what is to be translated anew."""
    notebook = nbformat.read(outline.notebook(file.stem), as_version=4)
    text = _one_line("\n".join(cell.source for _, cell in markdown_cells(notebook)))
    with file.open("rb") as opened:
        messages = [message for message in read_po(opened) if message.id]
    assert [message.id for message in messages if message.fuzzy or _one_line(message.id) not in text] == []
