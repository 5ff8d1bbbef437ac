"""Directives for docs/*.md. Each shows what stands elsewhere in the repository, so that nothing is written twice."""

from __future__ import annotations

import inspect
import json
import re
from importlib import import_module
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from course import outline
from course.map import course_map

ROOT = outline.ROOT


class Cells(SphinxDirective):
    """``{cells} slug id id …``: stored cells of a lecture with what they show, and a link to it."""

    required_arguments, optional_arguments = 2, 9

    def run(self) -> list[nodes.Node]:
        slug, *wanted = self.arguments
        path = outline.notebook(slug)
        self.env.note_dependency(str(path))
        cells = {cell["id"]: cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]}
        if missing := [one for one in wanted if one not in cells]:
            raise self.error(f"{path.name} has no cell {missing[0]}")
        found: list[nodes.Node] = []
        for one in wanted:
            source = "".join(cells[one]["source"])
            found.append(cell := _classed("cell"))
            cell += _classed("cell_input", nodes.literal_block(source, source, language="ipython3"))
            cell += [_classed("cell_output", node) for output in cells[one]["outputs"] for node in _shown(output)]
        (lecture,) = (one for one in outline.lectures() if one.slug == slug)
        link = f"[{lecture.number:02d} · {lecture.title}](notebooks/{path.name})"
        return [*found, *self.parse_text_to_nodes(f"From {link}.")]


class Lectures(SphinxDirective):
    """``{lectures}``: the table of lectures and labs."""

    def run(self) -> list[nodes.Node]:
        rows = ["| lecture | lab | what it teaches |", "|---|---|---|"]
        for one in outline.lectures():
            self.env.note_dependency(str(outline.notebook(one.slug)))
            lab = f"[lab](labs/{one.name}.ipynb)" if one.lab else "–"
            rows.append(f"| [{one.number:02d} · {one.title}](notebooks/{one.name}.ipynb) | {lab} | {one.teaches} |")
        return self.parse_text_to_nodes("\n".join(rows))


class CourseMap(SphinxDirective):
    """``{course-map}``: the map of the course, each card a link to its lecture (for pages on the first floor)."""

    def run(self) -> list[nodes.Node]:
        suffix = getattr(self.env.app.builder, "out_suffix", ".html")  # (a builder of catalogues has none)
        html = course_map(lambda one: f"notebooks/{one.name}{suffix}")
        return [_classed("course-map", nodes.raw(html, html, format="html"))]


class MagicHelp(SphinxDirective):
    """``{magic-help} module.Class.method``: what a magic says of itself."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module, of_class, name = self.arguments[0].rsplit(".", 2)
        said = inspect.getdoc(getattr(getattr(import_module(module), of_class), name)) or ""
        text = re.sub(r"^::\n+", "", said).replace("%%%%", "%%")
        return [nodes.literal_block(text, text, language="text")]


class Start(SphinxDirective):
    """``{start}``: what to type."""

    def run(self) -> list[nodes.Node]:
        address = self.config.book_repository
        text = f"git clone {address} many-gpus\ncd many-gpus\nmake lab" if address else "make lab"
        return [_classed("copy", nodes.literal_block(text, text, language="console"))]


def _classed(name: str, *inside: nodes.Node) -> nodes.container:
    return nodes.container("", *inside, classes=[name])


def _shown(output: dict[str, Any]) -> list[nodes.Node]:
    if output["output_type"] == "stream":
        text = "".join(output["text"])
        return [nodes.literal_block(text, text, language="none")]
    html = "".join(output["data"].get("text/html", ""))
    text = "".join(output["data"].get("text/plain", ""))
    return [nodes.raw(html, html, format="html") if html else nodes.literal_block(text, text, language="none")]


def setup(app: Sphinx) -> None:
    directives: dict[str, type[SphinxDirective]] = {"cells": Cells, "lectures": Lectures, "course-map": CourseMap}
    directives |= {"magic-help": MagicHelp, "start": Start}
    for name, directive in directives.items():
        app.add_directive(name, directive)
