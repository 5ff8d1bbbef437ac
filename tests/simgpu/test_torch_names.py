"""Torch's private names stand in one module, which works with the versions of torch that it names."""

import ast
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import simgpu
from simgpu import _torch

ROOT = Path(simgpu.__file__).parent

MODULE = ROOT / "_torch.py"


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and len(name) > 1


def is_operator(name: str) -> bool:
    return any(hasattr(getattr(torch.ops, space), name) for space in ("aten", "c10d", "_c10d_functional"))


def names_of_torch() -> set[str]:
    """Private names in torch's modules and classes."""
    importlib.import_module("simgpu.ranks.changes")  # and with it torch's modules for ranks
    found: set[str] = set()
    for module in [each for name, each in sys.modules.items() if name.partition(".")[0] == "torch"]:
        found.update(vars(module))
        for value in list(vars(module).values()):
            if issubclass(type(value), type) and str(value.__module__).startswith("torch"):
                found.update(vars(value))
    found |= {"_cdata", "_schema", "_overloadpacket", "_op", "_local_tensor", "_modules"}  # of objects
    return {name for name in found if is_private(name)}


def private_names(source: str, known: set[str]) -> Iterator[str]:
    """Where a module's text has a private name of torch."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    own |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    for node in nodes:
        match node:
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] == "torch":
                parts = [part for name in node.names for part in (*module.split("."), name.name)]
            case ast.Import():
                names = [name.name.split(".") for name in node.names]
                parts = [part for name in names if name[0] == "torch" for part in name]
            case ast.Attribute(attr=name, value=owner):
                text = ast.unparse(owner)
                of_torch = text.split(".")[0] == "torch"
                operators = text.removeprefix("_").startswith(("aten", "torch.ops"))
                parts = [name] if not operators and (of_torch or name in known - own) else []
            case ast.Constant(value=str(name)):  # as in getattr(tensor, "_name")
                parts = [name] if name in known - own and not is_operator(name) else []
            case _:
                parts = []
        yield from (f"line {node.lineno}: {part}" for part in parts if is_private(part))


def test_private_names_of_torch_stand_in_one_module_alone() -> None:
    known = names_of_torch()
    found = {
        str(path.relative_to(ROOT)): places
        for path in ROOT.rglob("*.py")
        if path != MODULE and (places := list(private_names(path.read_text(), known)))
    }
    assert not found
    assert len(list(private_names(MODULE.read_text(), known))) > 30


def test_every_name_that_is_given_on_demand_is_there() -> None:
    assert all(getattr(_torch, name) is not None for name in _torch._ON_DEMAND)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = _torch.nothing


def imported(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}
    )


def test_another_version_is_refused_in_a_sentence_and_can_be_tried() -> None:
    code = "import torch; torch.__version__ = '2.9.1+cu128'; import simgpu; print('imported')"
    refused = imported(code)
    assert refused.returncode == 1
    last = refused.stderr.strip().splitlines()[-1]
    assert last.startswith("simgpu._torch.UntriedTorch: ")
    assert "torch 2.10 to 2.14, not with 2.9.1+cu128: install" in last
    assert imported(code, SIMGPU_UNTESTED_TORCH="1").stdout == "imported\n"


def test_the_import_waits_for_nothing_that_only_ranks_need() -> None:
    code = "import torch, sys; before = set(sys.modules); import simgpu; print(*(set(sys.modules) - before))"
    assert not [name for name in imported(code).stdout.split() if name.startswith("torch.distributed")]
