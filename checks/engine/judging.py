"""An answer beside the official solution, in a fresh process or on fresh ranks: what it leaves there is gone."""

from __future__ import annotations

import copy
import itertools
import os
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import torch.distributed as dist

from checks.engine.answers import Answer
from checks.engine.inside import Outcome
from checks.engine.processes import run
from checks.engine.reference import Reference
from checks.engine.refusing import difference, same
from checks.engine.verdicts import NotStarted, Wrong

SEED = "COURSE_SEED"  # this environment variable draws other cases
LEAST, MOST = 6, 2_000  # cases, where they are drawn until every mistake has shown

Case = dict[str, Any]
Seen = dict[str, Any]
Play = Callable[..., Seen]
"""``play(case, function, …)`` calls the functions in a case and returns what was seen, by what a sentence calls it. It
may refuse. On ranks, all of them play."""
Draw = Callable[[random.Random, int], Case]


def judge(
    official: Reference,
    play: Play,
    cases: Draw | Sequence[Case],
    *answers: Answer,
    ranks: Sequence[int | None] = (None,),
    timeout: float = 60,
    run: Callable[..., Any] = run,
) -> dict[str, Any]:
    """In every case, an answer does what the official solution does.

    Args:
        cases: either some, or how to draw one (number 0 is the cleanest): then they are drawn until each mistake of the
            official solution has shown. The words and short numbers in a case are told to the learner.
        ranks: how many ranks play, one world after the other; None: one process.
        timeout: seconds for each world.
        run: starts the processes, if ranks of the course's own are not what the exercise is about.

    Raises:
        Wrong: naming the mistake that does the same, if there is one.
        NotStarted: the answer says so.
    """
    seed, played = int(os.environ.get(SEED) or 0), 0
    for world in ranks:
        done = run(_judge, play, cases, official, seed, *answers, ranks=world, timeout=timeout)
        played += done if world is None else done[0]
    return {"cases": played}


def _judge(play: Play, cases: Draw | Sequence[Case], official: Reference, seed: int, *answers: Any) -> int:
    """In the process: how many cases were played."""
    right, alone = official.functions(), dist.get_world_size() == 1
    if callable(cases):
        cases = list(_telling(cases, play, official, random.Random(seed)))
    seen: list[tuple[Case, Seen, Seen]] = []
    first = None  # the first case in which the answer does something else
    for case in cases:
        expected, found = play(copy.deepcopy(case), *right), _attempt(play, case, answers, pass_on=not alone)
        seen.append((case, expected, found))
        if first is None and any(_everywhere(not same(found, expected))):
            first = seen[-1]
        if first and (not alone or isinstance(first[2], _Ended)):  # ranks might wait for each other in a later case
            break  # (what one process returns in those tells mistakes apart)
    if first:
        _refuse(play, first, seen, official)
    return len(seen)


def drawn(draw: Draw, count: int) -> list[Case]:
    """So many cases, always the same ones for a seed, so that a learner can ask for one by its number."""
    rng = random.Random(int(os.environ.get(SEED) or 0))
    return [draw(rng, number) for number in range(count)]


class _Ended(dict[str, Any]):
    """What was seen of a program that has come to no result: how it ended."""

    def __init__(self, error: BaseException) -> None:
        sentence = error.text if isinstance(error, Wrong) else f"raised {type(error).__name__}"
        if isinstance(error, Outcome):  # an answer's exception
            raised = re.search(r"raised \w+", error.record["sentence"])
            sentence = raised[0] if raised else error.record["sentence"]
        super().__init__(ended=sentence)
        self.error = error


def _attempt(play: Play, case: Case, functions: Sequence[Any], pass_on: bool = False) -> Seen:
    """What was seen of functions in a case. An error of theirs is something that is seen too, or it is passed on."""
    try:
        return play(copy.deepcopy(case), *functions)
    except (Wrong, Outcome) as error:
        if isinstance(error, Outcome) and error.record["kind"] == "not started":
            raise
        if pass_on:
            raise _in_case(error, case) from error.__cause__
        return _Ended(_in_case(error, case))
    except Exception as error:
        if pass_on or isinstance(error, NotStarted):
            raise
        return _Ended(error)


def _refuse(play: Play, first: tuple[Case, Seen, Seen], seen: Sequence[Any], official: Reference) -> NoReturn:
    """Name the mistake that does the same in all cases that were seen; else say what differs in the first wrong one."""
    case, expected, found = first
    if isinstance(found, _Ended):
        raise found.error
    fault = ""
    for mistake in official.mistakes:
        functions = official.functions(mistake)
        played = (same(_attempt(play, c, functions), f) for c, _, f in (first, *seen))
        alike = all(played if dist.get_world_size() == 1 else [*played])  # (all ranks play together)
        if all(_everywhere(alike)):
            fault = mistake
            break
    label = next((name for name in expected if not same(found.get(name), expected[name])), "")
    told = _everywhere((label, *difference(found.get(label), expected[label])) if label else None)
    rank = next(rank for rank, one in enumerate(told) if one)
    label, measured, right = told[rank]
    on = f"on rank {rank}, " * (len(told) > 1)
    error = Wrong(fault or f"{on}{label}: not what the exercise says", measured=measured, expected=right)
    if fault:
        error.figures = f"{on}{label}: {error.figures}"
    raise _in_case(error, case)


def _telling(draw: Draw, play: Play, official: Reference, rng: random.Random) -> Iterator[Case]:
    """Cases in which every mistake shows, and some more."""
    right, left = official.functions(), {words: official.functions(words) for words in official.mistakes}
    for number in itertools.count():
        case = draw(rng, number)
        expected = play(copy.deepcopy(case), *right)
        shown = [words for words, one in left.items() if not same(_attempt(play, case, one), expected)]
        if shown or number < LEAST:
            yield case
        left = {words: one for words, one in left.items() if words not in shown}
        if not left and number + 1 >= LEAST:
            return
        if number > MOST:
            raise ValueError(f"no case shows: {list(left)}")


def _in_case(error: Any, case: Case) -> Any:
    """The same error with the case that it is about."""
    told = {name: value for name, value in case.items() if name != "seed" and len(repr(value)) < 60}
    about = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in told.items())
    record = vars(error) if isinstance(error, Wrong) else error.record
    record["figures"] = "; ".join(part for part in (about, record["figures"]) if part)
    return error


def _everywhere(mine: Any) -> list[Any]:
    """What each rank says."""
    said: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(said, mine)
    return said
