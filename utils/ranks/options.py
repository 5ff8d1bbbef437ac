"""Reading what follows %%ranks: options, lists of ranks, and whether the cell is Python at all.

Every mistake ends in one sentence (a BadRequest) before any rank is troubled.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import re
import warnings
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import parse_argstring

from utils.ranks.errors import BadRequest, CellSyntaxError
from utils.ranks.output import label
from utils.ranks.provider import provider

OPTIONS = ("-n", "--nodes", "--only", "--backend", "--timeout", "--bg", *provider().arguments)
_MEANT = {  # what launchers call it
    **dict.fromkeys(("--ranks", "--np", "--nproc", "--nproc-per-node", "--num-processes", "--world-size"), "-n"),
    **dict.fromkeys(("-N", "--nnodes", "--num-nodes"), "--nodes"),
}
#: help and commands of the notebook, whose line is no Python: ?len, len?, %time, !ls, files = !ls, took = %timeit …
_OF_THE_NOTEBOOK = re.compile(r"[%!?]|[\w.]+\?\??$|[\w\s,.]+=\s*[%!]")


def parse(magic: Any, line: str) -> argparse.Namespace:
    """Options of a line; an unknown one is answered with the nearest that exists."""
    for word in line.split():
        name = word.split("=")[0]
        if re.match(r"--?[A-Za-z]", name) and name not in OPTIONS and not re.match(r"-n\d+$", name):
            meant = _MEANT.get(name.replace("_", "-"))
            near = [meant] if meant else difflib.get_close_matches(name, OPTIONS, 1, 0.4)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise BadRequest(
                f"%%ranks has no option {name}.{hint} It has {', '.join(OPTIONS)}; %%ranks? explains them."
            )
    try:
        return parse_argstring(magic, line)
    except UsageError as error:
        raise BadRequest(f"{error}. For example: %%ranks -n 4 --timeout 120") from None


def rank_list(text: str, size: int) -> list[int]:
    """``0,2`` and ``1-3`` as lists of ranks."""
    ranks: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None:
            raise BadRequest(f"--only takes ranks such as 0,2 or 1-3, not {text!r}.")
        first = int(match[1])
        ranks |= set(range(first, int(match[2] or first) + 1))
    if wrong := [rank for rank in ranks if rank >= size]:
        raise BadRequest(f"This world has ranks 0 to {size - 1}; there is no {label(wrong)}.")
    if not ranks:
        raise BadRequest(f"--only {text} names no rank: write the smaller one first, as in 1-3.")
    return sorted(ranks)


def parsed(source: str) -> ast.Module:
    """The cell, parsed once in the notebook: what would fail on every rank stops here, before any rank is troubled."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the ranks show them
            tree = ast.parse(source, "<cell on ranks>")
            compile(tree, "<cell on ranks>", "exec", dont_inherit=True)  # finds a return outside of a function, too
            return tree
    except SyntaxError as error:
        line = source.splitlines()[error.lineno - 1].strip() if error.lineno and source.strip() else ""
        if _OF_THE_NOTEBOOK.match(line):
            raise BadRequest(
                f"Line {error.lineno} ({line[:40]!r}) is a command of the notebook, and ranks run Python only: "
                "give it a cell of its own."
            ) from None
        error.text = error.text or line
        if re.search(r"('await'|async.*) outside", error.msg):
            raise BadRequest(
                f"Line {error.lineno} ({line[:40]!r}) waits outside of a function, and on ranks no loop runs yet: "
                "write async def main(): … and call asyncio.run(main())."
            ) from None
        raise CellSyntaxError(error) from None


def torch_modules(source: str, tree: ast.AST) -> list[str]:
    """Parts of torch that this code will import: imported once before ranks are forked, each need not import them.

    The first optimizer and DDP import torch's compiler (torch 2.13: 800 modules, a second), so their names count too.
    """
    wanted = {"torch._dynamo"} if re.search(r"\boptim\b|DistributedDataParallel", source) else set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            wanted |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            wanted |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return sorted(module for module in wanted if module.startswith("torch."))
