"""A new lab before anybody has written it: an exercise, its check by contract, answers to try it on; all of it works.

``make new-lab SLUG=…`` for a lecture that has no lab yet, or one without any exercise.
"""

from __future__ import annotations

from pathlib import Path

from course import outline, readme
from course.build import LabError, build
from course.notebooks import as_text
from course.skeleton import LAB, cells

EXERCISE = """## 1 · Mean over the ranks

**Difficulty:** ●○○ · **Minutes:** 10

**Build** `mean(tensor)`. It runs on every rank at once, and puts the mean over all ranks into `tensor`, in place.

**Target:** one all-reduce, 4 bytes for each number.

<details><summary>Hint 1</summary>

`dist.all_reduce(tensor)` changes `tensor` on all ranks.

</details>"""
SOLUTION = """def mean(tensor):
    ### BEGIN SOLUTION
    dist.all_reduce(tensor)
    tensor /= dist.get_world_size()
    ### END SOLUTION
"""
EXERCISES = '''"""The exercises of this lab. Each module holds a contract.

averaging.py   mean
"""

from __future__ import annotations

from typing import Any

from checks.contracts import judge
from checks.framework import exercise
from checks.{slug} import averaging


@exercise(title="Mean over the ranks", difficulty=1, minutes=10)
def mean(mean: Any) -> dict[str, Any]:
    """Judge ``mean(tensor)``."""
    return judge(averaging.CONTRACT, mean)
'''
CONTRACT = '''"""Exercise 1: ``mean(tensor)``."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Amount, Broken, Case, Contract, Facts, Rules, compare


def draw(rng: random.Random) -> list[Case]:  # cases: plain data
    return [
        {{"ranks": ranks, "length": rng.randint(1, 9), "seed": rng.getrandbits(30)}}
        for ranks in (3, 2, rng.choice((4, 5)))
    ]


def scene(case: Case, watch: Any, facts: Facts) -> None:  # on every rank
    import torch
    import torch.distributed as dist

    generator = torch.Generator().manual_seed(case["seed"] + dist.get_rank())
    tensor = torch.randn(case["length"], generator=generator)
    facts["before"] = tensor.clone()
    watch.call("mean", tensor=tensor)
    facts["after"] = tensor


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:  # outside, from the facts of all ranks
    terms = [facts["before"] for facts in world]
    for rank, facts in enumerate(world):
        guesses = {{"is the sum: divide by the world size": sum(terms)}}
        yield from compare("value:mean", "the tensor", facts["after"], terms, 1 / len(world), guesses, rank=rank)


CONTRACT = Contract(
    name="{slug}.mean",
    rules={{
        "mean": Rules(
            changes=("tensor.value",),  # paths; all others are as before
            wire=lambda case, rank, facts: {{"all_reduce": Amount(calls=1, bytes=4 * case["length"])}},
        )
    }},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(("wire:none *", "{{}}: the ranks never hear of each other"),),  # broken clause → sentence
    refused=("torch.distributed.nn.functional.all_reduce",),
)
'''
ANSWERS = '''"""Exercise 1: the mean over the ranks."""

import torch
import torch.distributed as dist
from known_answers import right, wrong


def mean(tensor):
    dist.all_reduce(tensor)
    tensor /= dist.get_world_size()


SUM = "    dist.all_reduce(tensor)\\n"
MEAN = "    tensor /= dist.get_world_size()\\n"


# --- right, and written differently

right("divided before", {SUM: "", MEAN: MEAN + SUM})
right("all at once, and a wait", {SUM: "    dist.all_reduce(tensor, async_op=True).wait()\\n"})


@right("in a vector of its own")
def copied():
    def mean(tensor):
        total = tensor.clone()
        dist.all_reduce(total)
        with torch.no_grad():
            tensor.copy_(total / dist.get_world_size())

    return (mean,)


# --- wrong

wrong("sum", "is the sum: divide by the world size", {MEAN: ""})
wrong("alone", "the ranks never hear of each other", {SUM: ""})
wrong("two ranks always", "the tensor", {"dist.get_world_size()": "2"})
wrong("never waits", "never waits for", {SUM: "    dist.all_reduce(tensor, async_op=True)\\n"})
wrong("twice", "sends more than it has to", {SUM: "    dist.all_reduce(tensor.clone())\\n" + SUM})
'''


def make(slug: str, root: Path = outline.ROOT) -> list[str]:
    """Write a lab for a lecture; nothing that has been written is touched.

    Returns:
        What was done and what is left to do, a line each.

    Raises:
        LabError: before anything is changed.
    """
    lecture = next((one for one in outline.lectures(root) if one.slug == slug), None)
    if lecture is None:
        known = ", ".join(outline.slugs(root=root))
        raise LabError(f"There is no lecture {slug} (make it with `python -m course insert`): they are {known}.")
    made = {
        f"checks/{slug}/__init__.py": EXERCISES.format(slug=slug),
        f"checks/{slug}/averaging.py": CONTRACT.format(slug=slug),
        f"tests/answers/{slug}/mean.py": ANSWERS,
    }
    solution = root / "solutions" / f"{lecture.name}.ipynb"
    if taken := [name for name in made if (root / name).exists()] or _exercises(solution):
        raise LabError(f"The lab {slug} is begun ({taken[0]} is there): add exercises to it by hand.")
    for name, text in made.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8", newline="\n")
    solution.write_text(_solution(lecture), encoding="utf-8", newline="\n")
    build(root / "solutions", root / "labs")
    readme.write(root)
    name = f"{lecture.name}.ipynb"
    return [
        *(f"made {name}" for name in [*made, f"solutions/{name}", f"labs/{name}"]),
        f"store its outputs: make execute NB=solutions/{name}",
        f".venv/bin/python -m pytest tests/checks/test_labs.py -k {slug}",
        f"then put your own exercise in its place, and run: make mutants EXERCISE={slug}.mean",
    ]


def _exercises(solution: Path) -> list[str]:
    """Where a solution has exercises already."""
    begun = solution.exists() and "BEGIN SOLUTION" in solution.read_text(encoding="utf-8")
    return [f"solutions/{solution.name}"] if begun else []


def _solution(lecture: outline.Lecture) -> str:
    imports = f"import torch.distributed as dist\n\nfrom checks import {lecture.slug} as check"
    opening = LAB.format(number=lecture.number, title=lecture.title, name=lecture.name)
    return as_text(cells(opening, (imports, []), EXERCISE, (SOLUTION.rstrip(), []), ("check.mean(mean)", [])))
