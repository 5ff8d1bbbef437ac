"""The web book, built from what is stored: ``make book``, ``make book-strings``, ``make book-epub``.

    python publish/book.py html      every language, into build/book/html
    python publish/book.py epub      build/book/epub/many-gpus.epub
    python publish/book.py strings   the .po files of each translation follow the texts: see CONTRIBUTING

Nothing is executed and nothing is fetched. The sources (lectures, labs, docs/*.md, the README) are gathered in
build/book/source, where they have the places that they have in the book.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT)]

import catalogues  # noqa: E402
from extension.addresses import LANGUAGES  # noqa: E402

from course import outline  # noqa: E402

SOLUTIONS = b"""
```{toctree}
:caption: Solutions
:hidden:
:glob:

solutions/*
```
"""


def gather(source: Path, solutions: bool = False) -> None:
    """Copy what the book shows to where it belongs in the book; what has not changed is left alone."""
    wanted = {source / path.name: path for path in (ROOT / "docs").iterdir() if path.suffix in (".md", ".ipynb")}
    wanted |= {source / name: ROOT / name for name in ("README.md", "CONTRIBUTING.md")}
    folders = ["notebooks", "labs", *(["solutions"] if solutions else [])]
    for lecture in outline.lectures():
        for folder in folders:
            path = ROOT / folder / f"{lecture.name}.ipynb"
            wanted |= {source / folder / path.name: path} if path.exists() else {}
    folders = ("scripts", "benchmarks/results", "lessons/pictures/diagrams")
    for folder in folders:  # what pages link to, and pictures of the README
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix not in (".md", ".pyc"):
                wanted[source / path.relative_to(ROOT)] = path
    wanted |= catalogues.places(source / "locale")
    for old in set(path for path in source.rglob("*") if path.is_file()) - set(wanted):
        old.unlink()
    for there, path in wanted.items():
        there.parent.mkdir(parents=True, exist_ok=True)
        content = path.read_bytes()
        if path.parent == ROOT / "docs" and path.suffix == ".md":
            content = content.replace(b"](../", b"](")  # these pages are on the book's first floor
            content += SOLUTIONS if solutions and path.stem == "index" else b""
        if not there.exists() or there.read_bytes() != content:
            there.write_bytes(content)


def sphinx(builder: str, out: Path, to: Path, language: str = "en") -> int:
    """One run of Sphinx; a warning makes it fail, after all are shown."""
    from sphinx.cmd.build import main

    doctrees = out / "doctrees" / builder / language
    arguments = ["-b", builder, "-c", HERE, "-d", doctrees, "-D", f"language={language}"]
    arguments += ["--quiet", "--fail-on-warning", "--keep-going", out / "source", to]
    return main([str(one) for one in arguments])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python publish/book.py", description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("html", "epub", "strings"))
    parser.add_argument("--solutions", action="store_true", help="for instructors: solutions are pages too")
    parser.add_argument("--check", action="store_true", help="of strings: change nothing; fail if one is out of date")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "book")
    options = parser.parse_args(arguments)
    out = options.out.resolve()
    os.environ.setdefault("SOURCE_DATE_EPOCH", "0")  # the same bytes from the same sources
    gather(out / "source", options.solutions)
    if options.what == "epub":
        return sphinx("epub", out, out / "epub")
    if options.what == "strings":
        status = sphinx("gettext", out, out / "strings")
        stale = catalogues.stale(out / "strings") if options.check else catalogues.update(out / "strings")
        print(*stale, sep="\n")
        return status or int(options.check and bool(stale))
    html = out / "html"
    shutil.rmtree(html, ignore_errors=True)
    for language in LANGUAGES:
        if status := sphinx("html", out, html if language == "en" else html / language, language):
            return status
    for copies in html.glob("**/jupyter_execute"):
        shutil.rmtree(copies)  # the notebooks once more
    pages = sum(1 for _ in html.rglob("*.html"))
    size = sum(path.stat().st_size for path in html.rglob("*") if path.is_file())
    print(f"{pages} pages, {size / 1e6:.1f} MB: open {html / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
