"""Translations: ``locale/<language>/<page>.po``, where a lecture is known by its slug (``notebooks/start_here.po``).

Sphinx writes the texts of each page into a catalogue (.pot); here stored translations are put where Sphinx looks for
them, follow their texts, and are compared with them. What changed after it was translated is "fuzzy": it is not shown,
and a test names it.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.pofile import read_po, write_po

from course import outline

STORED = Path(__file__).resolve().parent / "locale"
THEME = "sphinx.po"
"""Beside the pages: words of Sphinx and its theme that they have not translated themselves."""


def _page(file: Path) -> str:
    """The page of a stored catalogue: "notebooks/start_here" becomes what the lecture's file is called now."""
    folder = file.parent.name
    if folder not in ("notebooks", "labs"):
        return file.stem
    return f"{folder}/{outline.notebook(file.stem, folder).stem}"


def _stored() -> Iterator[tuple[str, str, Path]]:
    """Every stored catalogue: its language, its page, its file."""
    for folder in sorted(path for path in STORED.iterdir() if path.is_dir()):
        for file in sorted(path for path in folder.rglob("*.po") if path.name != THEME):
            yield folder.name, _page(file), file


def places(folder: Path) -> dict[Path, Path]:
    """Where Sphinx looks for each stored catalogue."""
    pages = {folder / language / "LC_MESSAGES" / f"{page}.po": file for language, page, file in _stored()}
    return pages | {folder / file.parent.name / "LC_MESSAGES" / THEME: file for file in STORED.glob(f"*/{THEME}")}


def update(strings: Path) -> list[str]:
    """Let every stored translation follow its page's texts. Returns what there is to translate, a sentence each."""
    for _, page, file in _stored():
        catalogue = _read(file)
        catalogue.update(_read(strings / f"{page}.pot"))
        new = io.BytesIO()
        write_po(new, catalogue, width=120, ignore_obsolete=True)
        file.write_bytes(new.getvalue())
    return stale(strings)


def stale(strings: Path) -> list[str]:
    """What is not translated as it stands now, a sentence each."""
    found = []
    for language, page, file in _stored():
        translated = {message.id: message for message in _read(file) if message.id}
        texts = {message.id for message in _read(strings / f"{page}.pot") if message.id}
        for text in sorted(texts | set(translated)):
            message = translated.get(text)
            if text not in texts:
                found.append(f"{language} {page}: no longer there: {text[:80]}")
            elif message is None or not message.string:
                found.append(f"{language} {page}: not translated: {text[:80]}")
            elif message.fuzzy:
                found.append(f"{language} {page}: was changed: {text[:80]}")
    return found


def _read(file: Path) -> Catalog:
    with file.open("rb") as opened:
        return read_po(opened)
