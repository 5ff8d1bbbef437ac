"""From an exercise's contract to a verdict: cases are drawn, played on ranks, and judged here, outside of them."""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from checks import printed
from checks.answers import Answer
from checks.contracts.clauses import clauses
from checks.contracts.contract import Broken, Case, Contract, Facts, Mistakes, most_telling
from checks.sandbox import require_returned, run_to_the_ends
from checks.verdicts import Wrong

SEED = "COURSE_SEED"  # an environment variable: other cases than usual


def judge(contract: Contract, *answers: Answer, seed: int | None = None) -> dict[str, Any]:
    """Judge an answer by the contract of its exercise.

    Args:
        answers: the learner's functions, in the order of the check's parameters.
        seed: of the cases; by default what COURSE_SEED says, or 0.

    Returns:
        Figures to show beside ✓.

    Raises:
        Wrong: with the one sentence that says most.
        NotStarted: the answer says so.
    """
    cases = cases_of(contract.name, contract.draw, seed)
    played: list[tuple[Case, list[Facts]]] = []
    for ranks in dict.fromkeys(case["ranks"] for case in cases):
        these = [case for case in cases if case["ranks"] == ranks]
        now = list(zip(these, _play(contract, these, answers), strict=False))
        for case, world in now:
            if broken := list(_broken(contract, case, world)):
                printed.show([one["printed"] for one in world])
                wrong = most_telling(contract.mistakes, case, broken)
                wrong.details = next((one["stopped"]["details"] for one in world if one["stopped"]), "")
                raise wrong
        if len(now) < len(these):  # (where a scene ends early, a clause is broken)
            raise Wrong(f"the check could not be played to its end ({len(now)} of {len(these)} cases on {ranks} ranks)")
        played += now
    printed.show([one["printed"] for one in played[0][1]])
    return contract.figures([(case, [one["facts"] for one in world]) for case, world in played])


def cases_of(name: str, draw: Callable[[random.Random], list[Case]], seed: int | None = None) -> list[Case]:
    """An exercise's cases, with the seed from which they are drawn: by default what COURSE_SEED says, or 0."""
    seed = int(os.environ.get(SEED, "0")) if seed is None else seed
    return [case | {"drawn": seed} for case in draw(random.Random(f"{name} {seed}"))]


def refuse(case: Case, broken: Iterable[Broken], mistakes: Mistakes = ()) -> None:
    """For programs that a launcher has started, of which there are facts alone: Wrong if a clause is broken."""
    if found := list(broken):
        raise most_telling(mistakes, case, found)


def _play(contract: Contract, cases: list[Case], answers: Sequence[Answer]) -> Iterator[list[dict[str, Any]]]:
    """For each case that was begun, what each rank has found."""
    from checks.contracts.watch import in_rank  # (which imports torch)

    ranks, names = cases[0]["ranks"], [answer.name for answer in answers]
    # (The folder is the judge's, who outlives a rank that is killed.)
    with tempfile.TemporaryDirectory(prefix="check-", ignore_cleanup_errors=True) as folder:
        played = contract.scene, cases, contract.refused, names, folder, *answers
        ends = run_to_the_ends(in_rank, *played, ranks=ranks, timeout=contract.seconds)
    found = require_returned(ends, f"The {ranks} ranks wait for each other, and nobody comes")
    for world in zip(*found, strict=False):
        yield list(world)


def _broken(contract: Contract, case: Case, world: Sequence[dict[str, Any]]) -> Iterator[Broken]:
    """Every clause that is broken in a case."""
    yield from (found := list(clauses(contract, case, world)))
    facts = [one["facts"] for one in world]
    stumbled = [one["stumbled"] for one in world if one["stumbled"]]
    ended = any(one["stopped"] for one in world) or any("raised" in r for one in world for r in one["records"])
    if not (found or stumbled or ended):
        yield from contract.judge(case, facts)
        return
    with contextlib.suppress(KeyError, IndexError):  # what is known up to there often says more
        yield from contract.judge(case, facts)
    if stumbled:
        yield Broken("use:", f"what came back could not be used ({stumbled[0]})", call=len(world[0]["records"]))
