"""Reading what follows %%ranks: options, lists of ranks, and whether the cell is Python at all.

Every mistake ends in one sentence (a BadRequest) before any rank is troubled.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import re
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import parse_argstring

from utils.ranks.errors import BadRequest, CellSyntaxError
from utils.ranks.output import label
from utils.ranks.provider import provider

OPTIONS = ("-n", "--nodes", "--only", "--backend", "--timeout", "--bg", *provider().arguments)


def parse(magic: Any, line: str) -> argparse.Namespace:
    """Options of a line; an unknown one is answered with the nearest that exists."""
    for word in line.split():
        name = word.split("=")[0]
        if re.match(r"--?[A-Za-z]", name) and name not in OPTIONS and not re.match(r"-n\d+$", name):
            near = difflib.get_close_matches(name, OPTIONS, 1, 0.4)
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


def check_source(source: str) -> None:
    """Stop at what would fail on every rank before any rank is troubled."""
    try:
        ast.parse(source, "<cell on ranks>")
    except SyntaxError as error:
        line = source.splitlines()[error.lineno - 1].lstrip() if error.lineno and source.strip() else ""
        if line.startswith(("%", "!")):
            raise BadRequest(
                f"Line {error.lineno} ({line[:40]!r}) is a command of the notebook, and ranks run Python only: "
                "give it a cell of its own."
            ) from None
        raise CellSyntaxError(error) from None


def torch_modules(source: str) -> list[str]:
    """Parts of torch that this code will import: imported once before ranks are forked, each need not import them.

    The first optimizer and DDP import torch's compiler (torch 2.13: 800 modules, a second), so their names count too.
    """
    wanted = {"torch._dynamo"} if re.search(r"\boptim\b|DistributedDataParallel", source) else set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            wanted |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            wanted |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return sorted(module for module in wanted if module.startswith("torch."))
