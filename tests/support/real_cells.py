"""A lecture's cells on simulated GPUs, written for real ones: what is left of them, and why others are left out.

- ``%%ranks … --gpu H100 --shapes``: these options go. "simgpu:1" becomes "cuda:1".
- ``simgpu.cluster(…)`` goes; so does ``with simgpu.profile() as prof:``, and what was in it stays.
- A statement that asks the simulation for something, or uses what such statements give, goes; so does a function that
  would not return what it did.
- A cell that needs more GPUs than there are goes as a whole.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from IPython.core.inputtransformer2 import TransformerManager
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

OPTIONS = re.compile(r"""\s--(?:shapes|(?:gpu|network|memory)[ =](?:"[^"]*"|'[^']*'|\S+))""")


@dataclass
class Cell:
    """One cell: its number in the notebook, what is run of it, and why nothing is ("": something is).

    ``changed``: it was written for simulated GPUs. ``uses`` and ``makes``: names.
    """

    number: int
    source: str
    why_not: str = ""
    changed: bool = False
    may_raise: bool = False
    uses: set[str] = field(default_factory=set)
    makes: set[str] = field(default_factory=set)


class _RealDevices(ast.NodeTransformer):
    """Names real devices in place of simulated ones; counts how many."""

    def __init__(self, device: str) -> None:
        self.device, self.changed, self.gpus = device, False, 0

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if ast.unparse(node) == "torch.simgpu":
            self.changed, node.attr = True, self.device
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        found = re.fullmatch(r"simgpu(?::(\d*))?", node.value) if isinstance(node.value, str) else None
        if not found:
            return node
        self.changed, self.gpus = True, max(self.gpus, int(found[1] or 0) + 1)
        return ast.Constant(self.device if self.device == "cpu" else node.value.replace("simgpu", self.device))

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        if node.arg == "gpus_per_node" and isinstance(node.value, ast.Constant):
            self.gpus = max(self.gpus, node.value.value)
        return self.generic_visit(node)


class _Pruned:
    """Statements without those that ask the simulation for something; ``lost``: names that nobody makes then."""

    def __init__(self, lost: set[str]) -> None:
        self.lost, self.changed = lost, False

    def body(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        return [kept for each in statements for kept in self.statement(each)]

    def statement(self, node: ast.stmt) -> list[ast.stmt]:
        """What is left of one."""
        if isinstance(node, ast.Import):
            node.names = [one for one in node.names if one.name != "simgpu"]
            return [node] if node.names else []
        if isinstance(node, ast.Expr) and _called(node.value) == "simgpu.cluster":
            self.changed = True
            return []
        if isinstance(node, ast.With) and {_called(item.context_expr) for item in node.items} <= {
            "simgpu.profile",
            "simgpu.cluster",
        }:
            self.changed = True
            self.lost |= {name for item in node.items if item.optional_vars for name in made(item.optional_vars)}
            return self.body(node.body)
        parts = [name for name in ("body", "orelse", "finalbody") if getattr(node, name, None)]
        if not parts or isinstance(node, ast.Try | ast.ClassDef):
            return self._whole(node)
        rest = [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]
        if any(used(child) & self.lost for child in rest):
            return self._whole(node)
        if isinstance(node, ast.FunctionDef):
            inner = _Pruned(set(self.lost) - {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)})
            before = _returns(node)
            node.body = inner.body(node.body) or [ast.Pass()]
            self.changed |= inner.changed
            if _returns(node) != before:
                self.lost.add(node.name)
                return []
            self.lost.discard(node.name)
            return [node]
        for name in parts:
            setattr(node, name, self.body(getattr(node, name)) or [ast.Pass()])
        return [node]

    def _whole(self, node: ast.stmt) -> list[ast.stmt]:
        if used(node) & self.lost:
            self.lost |= made(node)
            return []
        self.lost -= made(node)
        return [node]


def for_real_gpus(cells: Iterable[Any], gpus: int, device: str = "cuda") -> list[Cell]:
    """Every code cell of a notebook, as it is run on so many GPUs.

    Args:
        device: "cuda"; "cpu", to try all this where there is none.
    """
    found, size, lost = [], 4, {"simgpu"}
    for number, each in enumerate(cells):
        if each.cell_type != "code":
            continue
        cell = Cell(number, each.source, may_raise="raises-exception" in each.metadata.get("tags", ()))
        found.append(cell)
        head, _, body = each.source.partition("\n")
        if head.startswith("%%ranks"):
            real = OPTIONS.sub("", head)
            cell.changed, head = real != head, real
            size = int(asked[1]) if (asked := re.search(r"-n[ =]?(\d+)", head)) else size
        elif head.startswith("%%"):
            continue
        else:
            head, body = "", TransformerManager().transform_cell(each.source)
        devices, pruned = _RealDevices(device), _Pruned(lost)
        tree = devices.visit(ast.parse(body))
        everything = made(tree)
        tree.body = pruned.body(tree.body)
        needs = max(devices.gpus, size if cell.changed else 0)
        cell.changed |= devices.changed or pruned.changed
        if needs > gpus:
            cell.why_not = f"needs {needs} GPUs"
        elif not tree.body:
            cell.why_not = "is about simulation"
        if cell.why_not:
            lost |= everything
            continue
        cell.uses, cell.makes = used(tree), made(tree)
        body = ast.unparse(ast.fix_missing_locations(tree))
        cell.source = f"{head}\n{body}" if head else body
    return found


def _called(node: ast.expr) -> str:
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def _returns(node: ast.AST) -> int:
    return sum(isinstance(each, ast.Return | ast.Yield) for each in ast.walk(node))


def used(tree: ast.AST) -> set[str]:
    """Names that it reads. (``%ranks push x`` is a call with a text by now.)"""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    moved = (re.match(r"(?:push|pull) (.+)", text) for text in texts)
    return names | {name for one in moved if one for name in re.findall(r"\w+", one[1])}


def made(tree: ast.AST) -> set[str]:
    """Names that it gives a value."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    aliases = (node for node in ast.walk(tree) if isinstance(node, ast.alias))
    return names | {(one.asname or one.name).split(".")[0] for one in aliases}


def with_what_they_need(cells: list[Cell]) -> list[Cell]:
    """The cells that were written for simulated GPUs, and those before them whose names they use."""
    chosen: list[Cell] = []
    wanted: set[str] = set()
    for cell in reversed(cells):
        always = "load_ext" in cell.source or "'push " in cell.source  # (what a push makes may be in a variable)
        if not cell.why_not and (cell.changed or cell.makes & wanted or always):
            chosen.append(cell)
            wanted |= cell.uses
    return chosen[::-1]


def run(cells: list[Cell], folder: str) -> Iterator[str]:
    """Run them in a kernel; yields a sentence for each that failed, up to one that this GPU's memory is too small for.

    Args:
        folder: where the notebook is.
    """
    notebook = new_notebook(cells=[new_code_cell(cell.source) for cell in cells])
    NotebookClient(notebook, timeout=120, allow_errors=True, resources={"metadata": {"path": folder}}).execute()
    for cell, ran in zip(cells, notebook.cells, strict=True):
        for output in ran.outputs:
            if output.output_type == "error" and output.ename == "OutOfMemoryError":
                return
            if output.output_type == "error" and not cell.may_raise:
                yield f"cell {cell.number}: {output.ename}: {output.evalue[:200]}"
