"""What an exercise declares, and how the one sentence is chosen that a learner reads."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from checks.plain import shorten
from checks.verdicts import Wrong

Case = dict[str, Any]
Facts = dict[str, Any]
Mistakes = Sequence[tuple[str, str]]
LONGEST, FIGURE = 600, 150  # characters of a sentence, and of each figure behind it
OPENING = ("ready", "looks", "course", "raised")  # clauses that are told before any mistake an exercise knows of
# Which broken clause says most where no known mistake matches: causes come before what follows from them.
TELLING = (
    "ready",
    "course",
    "looks",
    "wire",
    "raised",
    "returns",
    "state",
    "value",
    "copies",
    "work",
    "memory",
    "starts",
    "writes",
    "around",
    "keeps",
    "use",
)


@dataclass(frozen=True)
class Amount:
    """How much of one kind of communication a function needs on one rank.

    Args:
        calls: at most so many.
        bytes: exactly so many, all calls together; between ``least`` and so many if ``least`` is given.
        peer: the root, receiver or sender that it has to be, if it matters.
        some: whether some of the ranks may do it among themselves.
    """

    calls: int
    bytes: int
    least: int | None = None
    peer: int | None = None
    some: bool = False


@dataclass(frozen=True)
class Rules:
    """What one function of an exercise, or one step with a learner's object, may do.

    Args:
        changes: patterns of the snapshot's paths that may differ afterwards; everything else is as before.
        keeps: patterns of paths among these that have to stay all the same.
        wire: from a case, a rank and its facts, how much of which communication; None: it is not judged.
        surplus: from a rank's facts, the bytes that a likely mistake sends too many, by the words for the mistake.
        same_calls: whether all ranks have to call the same.
        allows: patterns of what else may happen: "starts:a process", "writes:*", "course:lessons.training.feeding";
            "wire:disagree" in a world's last case, where a rank has to fail and the others are stopped.
    """

    changes: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    wire: Callable[[Case, int, Facts], Mapping[str, Amount]] | None = lambda *_: {}
    surplus: Callable[[Facts], Mapping[str, int]] = lambda _: {}
    same_calls: bool = True
    allows: tuple[str, ...] = ()


@dataclass(frozen=True)
class Broken:
    """A clause that an answer has broken.

    Args:
        clause: its key, such as ``state:model.first.training``; patterns of known mistakes match it.
        sentence: what the contract says, and what was seen.
        measured, expected: figures to show behind it.
        rank: where; None for the whole world.
        call: how many calls came before, so that the first cause is told.
    """

    clause: str
    sentence: str
    measured: Any = None
    expected: Any = None
    rank: int | None = None
    call: int = 0

    def at(self, **place: Any) -> Broken:
        """The same, found on another ``rank`` or after so many ``call``s."""
        return replace(self, **place)


@dataclass(frozen=True)
class Contract:
    """An exercise, as data.

    Args:
        name: "ddp_and_bucketing.average".
        rules: by the name of a learner's function, or of a step of the scene.
        draw: from random numbers, the cases: dicts of plain data with ``ranks``, and ``seed`` for what a scene draws;
            ``gpus`` where a scene simulates so many.
        scene: in a rank, from a case, a ``Watch`` and a dict: makes the calls, puts plain facts into the dict.
        judge: outside, from a case and all ranks' facts: the clauses that broke by value.
        mistakes: pattern of a broken clause → a sentence that names the likely mistake; the first that matches is
            said. ``{}`` stands for the sentence of the clause. (The clauses of ``OPENING`` come before them.)
        refused: ready-made answers; they do not work inside.
        figures: from all cases and worlds of facts, what is shown with ✓.
        seconds: for the ranks of one size, however busy the machine is.
    """

    name: str
    rules: Mapping[str, Rules]
    draw: Callable[[random.Random], list[Case]]
    scene: Callable[..., None]
    judge: Callable[[Case, Sequence[Facts]], Iterable[Broken]]
    mistakes: Mistakes = ()
    refused: tuple[str, ...] = ()
    figures: Callable[[Sequence[tuple[Case, Sequence[Facts]]]], dict[str, Any]] = lambda _: {}
    seconds: float = 200


def most_telling(mistakes: Mistakes, case: Case, broken: Sequence[Broken]) -> Wrong:
    """The sentence for a case in which clauses are broken: a known mistake if one matches, else the first cause."""
    one, sentence = _known(mistakes, broken) or (min(broken, key=_rank_of), "{}")
    sentence = sentence.replace("{}", one.sentence).replace("?.", "?")
    if one.rank is not None and case["ranks"] > 1:
        sentence = f"on rank {one.rank} {sentence}"
    where = f" The case: {shown(case)}."
    figures = {name: value for name in ("measured", "expected") if (value := getattr(one, name)) is not None}
    figures = {name: value if isinstance(value, int) else _short(value) for name, value in figures.items()}
    wrong = Wrong("", **figures)
    room = LONGEST - len(where) - len(wrong.text) - 2
    sentence = sentence.rstrip(". ")
    shortened = sentence if len(sentence) <= room else sentence[: room - 1] + "…"
    wrong.sentence = shortened + ("" if shortened.endswith("?") else ".") + where
    return wrong


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else shorten(value)
    return text if len(text) <= FIGURE else text[: FIGURE - 1] + "…"


def _known(mistakes: Mistakes, broken: Sequence[Broken]) -> tuple[Broken, str] | None:
    of_opening = [pair for pair in mistakes if pair[0].partition(":")[0] in OPENING]
    patterns = [*of_opening, *((f"{clause}:*", "{}") for clause in OPENING), *mistakes]
    pairs = ((one, sentence) for pattern, sentence in patterns for one in sorted(broken, key=_rank_of)
             if fnmatchcase(one.clause, pattern))  # fmt: skip
    return next(pairs, None)


def _rank_of(one: Broken) -> tuple[int, int]:
    return one.call, TELLING.index(one.clause.partition(":")[0])


def shown(case: Case) -> str:
    """A case in words, with what is needed to run it again."""
    return ", ".join(_words(case))


def _words(case: Case) -> Iterator[str]:
    kind = "gpus" if "gpus" in case else "ranks"
    yield f"{case[kind]} {'GPU' if kind == 'gpus' else 'rank'}{'s' if case[kind] > 1 else ''}"
    for name, value in case.items():
        if name not in ("ranks", "gpus", "seed", "drawn") and not isinstance(value, list):
            yield f"{name}: {value}"
    yield f"seed {case['drawn']}"
