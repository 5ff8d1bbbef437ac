"""How much does a check see? `make mutants EXERCISE=ddp_and_bucketing.average` changes the right answer in many small
ways, asks the check about each, and lists what it accepts: a hole, or a change that fulfils the contract too.

The right answer stands in ``tests/answers/<slug>/<exercise>.py``, or is the official one. Mutants that were found to be
equal are listed in that file as ``EQUAL = {"line: change": "why"}``. The score is killed / (killed + survived).
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "support"))
import known_answers

ANSWERS = Path(__file__).resolve().parent / "answers"
_OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
              ast.Mod: ast.Mult, ast.GtE: ast.Gt, ast.Gt: ast.GtE, ast.LtE: ast.Lt, ast.Lt: ast.LtE, ast.Eq: ast.NotEq,
              ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And}  # fmt: skip
_NAMES = {"int32": "uint8", "int64": "uint8", "float64": "float32", "float32": "bfloat16", "SUM": "MAX", "AVG": "SUM",
          "MAX": "MIN", "parameters": "buffers", "buffers": "parameters", "zeros_like": "ones_like"}  # fmt: skip
# Added at the end of a function, or at the beginning if the end is not reached; those that use a name only where it
# is an argument.
_EFFECTS = {
    "": ("torch.manual_seed(0)", "torch.set_grad_enabled(not torch.is_grad_enabled())", "dist.barrier()",
         "torch.set_default_dtype(torch.float64)", "open('left_behind', 'w').close()"),
    "model": ("model.train(not model.training)", "model.requires_grad_(True)", "model.to(torch.float64)",
              "[p.register_hook(lambda g: g) for p in model.parameters() if p.requires_grad]",
              "[setattr(p, 'data', p.data.clone()) for p in model.parameters()]",
              "[p.data.add_(1e-7) for p in model.parameters()]"),
    "parameter": ("parameter.data.add_(1e-7)", "parameter.requires_grad_(False)"),
}  # fmt: skip


def mutants(text: str, asked_for: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Of an answer's text: what was changed ("12: x → y", the next one "12: x → y (2)"), and the changed text.

    Definitions that the functions which are asked for do not use are for other answers, and stay.
    """
    tree = ast.parse(text)
    strangers = {id(node) for one in _unused(tree, asked_for) for node in ast.walk(one)}
    imports = [alias for node in ast.walk(tree) for alias in getattr(node, "names", ()) if isinstance(alias, ast.alias)]
    modules = {(alias.asname or alias.name).split(".")[0] for alias in imports}
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    times: Counter[str] = Counter()
    for number, node in enumerate(ast.walk(tree)):
        if id(node) in strangers:
            continue
        inside = list(_inside(node, modules)) if isinstance(node, ast.Call) and id(node) not in statements else []
        for change, mutate in [*_changes(node), *inside]:
            changed = copy.deepcopy(tree)
            twin = list(ast.walk(changed))[number]
            mutate(twin)
            new = ast.unparse(ast.fix_missing_locations(changed)) + "\n"
            if new != ast.unparse(tree) + "\n":
                times[what := f"{getattr(node, 'lineno', 0)}: {change}"] += 1
                yield what + f" ({times[what]})" * (times[what] > 1), new


def _unused(tree: ast.Module, asked_for: Iterable[str]) -> list[ast.stmt]:
    """Functions and classes that these, and what they use, do not name."""
    known = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef | ast.ClassDef)}
    todo = list(asked_for)
    while todo:
        if (one := known.pop(todo.pop(), None)) is not None:
            todo += [node.id for node in ast.walk(one) if isinstance(node, ast.Name)]
    return list(known.values())


def _never_passed(last: ast.stmt) -> bool:
    """Whether what stands behind this statement is never reached."""
    if isinstance(last, ast.With):
        return _never_passed(last.body[-1])
    if isinstance(last, ast.If):
        return bool(last.orelse) and _never_passed(last.body[-1]) and _never_passed(last.orelse[-1])
    endless = isinstance(last, ast.While) and ast.unparse(last.test) == "True"
    return endless or isinstance(last, ast.Return | ast.Raise)


def _changes(node: ast.AST) -> Iterator[tuple[str, Any]]:
    for block in ("body", "orelse", "finalbody"):
        statements = getattr(node, block, None)
        for place, one in enumerate(statements if isinstance(statements, list) else ()):
            if isinstance(node, ast.Module) or isinstance(one, ast.FunctionDef | ast.ClassDef | ast.Pass):
                continue
            shown = ast.unparse(one).splitlines()[0]
            yield f"without `{shown}`", lambda n, b=block, p=place: getattr(n, b).__setitem__(p, ast.Pass())
    if isinstance(node, ast.Call):
        shown = ast.unparse(node)
        if len(node.args) > 1:
            yield f"arguments of `{shown}` swapped", lambda n: n.args.__setitem__(slice(0, 2), n.args[1::-1])
        for place, keyword in enumerate(node.keywords):
            yield f"`{shown}` without {keyword.arg}", lambda n, p=place: n.keywords.pop(p)
    for bound in ("lower", "upper", "step") if isinstance(node, ast.Slice) else ():
        if getattr(node, bound) is not None:
            yield f"`{ast.unparse(node)}` without {bound}", lambda n, b=bound: setattr(n, b, None)
    if isinstance(node, ast.Constant) and type(node.value) in (int, bool, float):
        for value in (not node.value,) if isinstance(node.value, bool) else (node.value + 1, node.value - 1):
            yield f"{node.value} → {value}", lambda n, v=value: setattr(n, "value", v)
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in _OPERATORS:
        yield f"other operator in `{ast.unparse(node)}`", lambda n: setattr(n, "op", _OPERATORS[type(n.op)]())
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _OPERATORS:
        yield f"other comparison in `{ast.unparse(node)}`", lambda n: n.ops.__setitem__(0, _OPERATORS[type(n.ops[0])]())
    if isinstance(node, ast.Attribute) and node.attr in _NAMES:
        yield f"{ast.unparse(node)} → {_NAMES[node.attr]}", lambda n: setattr(n, "attr", _NAMES[n.attr])
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        shown = ast.unparse(node.test)
        yield f"not `{shown}`", lambda n: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))
        yield f"always `{shown}`", lambda n: setattr(n, "test", ast.Constant(True))
    if isinstance(node, ast.FunctionDef):
        names = {argument.arg for argument in node.args.args}
        for needs, effects in _EFFECTS.items():
            for effect in effects if not needs or needs in names else ():
                statement = ast.parse(effect).body[0]
                place = 0 if _never_passed(node.body[-1]) else len(node.body)
                yield f"{node.name} with `{effect}`", lambda n, s=statement, p=place: n.body.insert(p, s)


def _inside(call: ast.Call, modules: set[str]) -> Iterator[tuple[str, Any]]:
    """In place of a call what it is made on, `x` of `x.clone()`, or its only argument, `x` of `int(x)`."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    root = ast.unparse(owner or call.func).split(".")[0]
    if owner and root not in (*modules, "self", "ctx", "super()") and not root[0].isupper():
        inner: ast.expr = owner
    elif len(call.args) == 1 and not isinstance(call.args[0], ast.Starred | ast.GeneratorExp):
        inner = call.args[0]
    else:
        return

    def become(node: ast.AST) -> None:
        node.__class__, node.__dict__ = inner.__class__, copy.deepcopy(inner.__dict__)

    yield f"`{ast.unparse(call)}` → `{ast.unparse(inner)}`", become


def judge(exercise: str, what: str, text: str) -> tuple[str, str, str]:
    """What was changed, the check's state, and its sentence."""
    slug, name = exercise.split(".")
    checked = getattr(importlib.import_module(f"checks.{slug}"), name)
    try:
        functions = known_answers.run(text, f"{exercise}: {what}")
        verdict = checked.verdict(*(functions[one] for one in checked.parameters))
    except Exception as error:  # it cannot even be defined
        return what, "wrong", f"{type(error).__name__}: {error}"
    return what, verdict.state, verdict.text


def main(arguments: list[str]) -> int:
    """Print what survives, and the score."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("exercise", help="ddp_and_bucketing.average")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="*", help="those whose change is like this: '*.clone()*'")
    parser.add_argument("--killed", action="store_true", help="list those too, with their sentences")
    chosen = parser.parse_args(arguments)
    path = ANSWERS.joinpath(*chosen.exercise.split(".")).with_suffix(".py")
    equal = known_answers.run(path.read_text(encoding="utf-8"), str(path)).get("EQUAL", {})
    slug, name = chosen.exercise.split(".")
    checked = getattr(importlib.import_module(f"checks.{slug}"), name)
    text = checked.official.program if checked.official else known_answers.right_text(path)
    found = list(mutants(text, checked.parameters))
    for moved in set(equal) - {what for what, _ in found}:
        print(f"unknown   {moved}: EQUAL names it, and there is no such mutant (lines have moved?)")
    found = [one for one in found if fnmatchcase(one[0], chosen.only)]
    survived, killed = [], 0
    # (Some mutants leave files behind: not here.)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), ProcessPoolExecutor(chosen.jobs) as pool:
        jobs = [pool.submit(judge, chosen.exercise, *mutant) for mutant in found if mutant[0] not in equal]
        for job in jobs:
            what, state, sentence = job.result()
            killed += state != "right"
            if state == "right":
                survived.append(what)
                print(f"accepted  {what}", flush=True)
            elif chosen.killed:
                print(f"refused   {what}\n          {sentence}", flush=True)
    count = len(found) - len(jobs)
    score = killed / max(killed + len(survived), 1)
    print(f"{chosen.exercise}: {killed} killed, {len(survived)} survived, {count} equal: score {score:.0%}")
    return bool(survived)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
