"""Exercise 5: ``train_epoch(batches, gradient, features, update)`` with broken batches, and with a broken program."""

from __future__ import annotations

import builtins
import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks import inside
from checks.contracts import Broken, Case, Contract, Facts, Rules, compare
from checks.torchrun import talk

CALLS, AROUND = 2, 1_000  # in a step; bytes beside the gradient
STEPS = 6
BROKEN = ("ValueError", "UnicodeDecodeError", "a ValueError of its own")
TEXTS = ("a broken file", None, "invalid literal for int() with base 10: 'x'", "not a picture")
DEFECTS = ("KeyError", "RuntimeError", "MemoryError", "StopIteration", "TypeError", "OSError", "AssertionError")
MORE = ("AttributeError", "UnboundLocalError", "ModuleNotFoundError", "RecursionError", "TabError", "Exception")
MORE += ("KeyboardInterrupt", "SystemExit")


class DamagedFile(ValueError):
    """As a library would have one."""


class DiskError(FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError,
                TimeoutError, InterruptedError, BlockingIOError, ChildProcessError, ProcessLookupError, BrokenPipeError,
                ConnectionAbortedError, ConnectionRefusedError, ConnectionResetError):  # fmt: skip
    """Whoever takes one of them for a broken batch takes it too; and so with the next one."""


class Mishap(IndexError, FloatingPointError, ZeroDivisionError, OverflowError, EOFError, BufferError, ReferenceError,
             SystemError, NotImplementedError, StopAsyncIteration, UserWarning, DeprecationWarning, RuntimeWarning,
             ResourceWarning, UnicodeWarning):  # fmt: skip
    """Of many kinds at once."""


class Cancelled(BaseException):
    """No Exception, and none of Python's own."""


class Torn(Sequence[str]):
    """Batches that fail when somebody who goes through them comes to one of them."""

    __slots__ = ("_batches", "_step", "met")

    def __init__(self, batches: list[str], step: int) -> None:
        self._batches, self._step, self.met = batches, step, False

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[str]:
        for step, batch in enumerate(self._batches):
            if step == self._step:
                self.met = True
                raise ValueError("the list of batches is torn")
            yield batch

    def __getitem__(self, step: Any) -> Any:
        return self._batches[step]


OWN = {"a ValueError of its own": DamagedFile} | {one.__name__: one for one in (DiskError, Mishap, Cancelled)}
TOLD = {"DiskError": "DiskError (each kind of OSError at once)", "Cancelled": "Cancelled (a BaseException)",
        "Mishap": "Mishap (ArithmeticError, LookupError, EOFError, Warning and more at once)"}  # fmt: skip


def draw(rng: random.Random) -> list[Case]:
    """Broken batches on any rank; then the same mistake in the program everywhere; at last on one rank alone."""
    cases = []
    for ranks in talk.worlds(rng):
        base = {"ranks": ranks, "features": rng.randint(1, 6)}
        for many in (True, False):
            broken = _broken(rng, ranks, many)
            base = base | {"features": rng.randint(1, 6), "broken per step": broken, "seed": rng.getrandbits(30)}
            cases.append(base | {"broken batches": str(sum(map(len, broken))), "raise": rng.choice(BROKEN)})
        step = rng.randrange(STEPS - 1) if ranks > 1 else STEPS - 1
        for where, kinds in (("update", BROKEN[:1]), ("gradient", (*DEFECTS, *MORE, *TOLD)), ("batches", BROKEN[:1])):
            more = {"a mistake in": where, "step": step, "kinds": list(kinds)}
            cases.append(base | {"broken per step": [[]] * STEPS} | more)
        if ranks > 1:
            more = {"a mistake in": "gradient", "of rank": rng.randrange(ranks), "step": step}
            cases.append(base | {"broken per step": [[]] * STEPS} | more | {"kinds": [rng.choice(DEFECTS)]})
    return cases


def _broken(rng: random.Random, ranks: int, many: bool) -> list[list[int]]:
    """For each step, the ranks whose batch is broken: in one step all, in the last one too now and then."""
    if not many:  # one batch: if its rank leaves its collective out, the epoch's last one waits in vain
        place = rng.randrange(STEPS)
        return [[rng.randrange(ranks)] if step == place else [] for step in range(STEPS)]
    steps = [sorted(rng.sample(range(ranks), rng.randint(1, max(1, ranks - 1)))) for _ in range(STEPS - 2)]
    steps += [list(range(ranks)), []]
    return rng.sample(steps, STEPS)


def gradient_of(case: Case, rank: int, step: int) -> Any:
    """Of a good batch; now and then it is all zeros, and counts like any other."""
    import torch

    generator = torch.Generator().manual_seed(case["seed"] + 100 * rank + step)
    numbers = torch.randn(case["features"], generator=generator)
    return numbers * 0 if (rank + step + case["seed"]) % 4 == 0 else numbers


def scene(case: Case, watch: Any, facts: Facts) -> None:
    facts["epochs"] = []
    for kind in case.get("kinds", [""]):
        epoch: Facts = {"kind": kind, "log": [], "updates": []}
        facts["epochs"].append(epoch)
        _play(case, watch, epoch)
        epoch["calls"] = talk.calls_of(watch.records[-1])


def _play(case: Case, watch: Any, epoch: Facts) -> None:
    import torch.distributed as dist

    rank, log, updates = dist.get_rank(), epoch["log"], epoch["updates"]
    batches = [f"batch {step}" for step in range(STEPS)]
    broken_program = "a mistake in" in case and case.get("of rank", rank) == rank

    def gradient(batch: str) -> Any:
        step = batches.index(batch)
        log.append(f"gradient {step}")
        if broken_program and case["a mistake in"] == "gradient" and step == case["step"]:
            raise _error(epoch["kind"], step)
        if rank in case["broken per step"][step]:
            raise _error(case["raise"], case["seed"] + step)
        return gradient_of(case, rank, step)

    def update(mean: Any) -> None:
        log.append("update")
        if broken_program and case["a mistake in"] == "update" and len(updates) == case["step"]:
            raise _error(epoch["kind"], case["step"])
        updates.append(mean.clone())

    given = {"batches": batches, "gradient": gradient, "features": case["features"], "update": update}
    if broken_program and case["a mistake in"] == "batches":
        given["batches"] = Torn(batches, case["step"])
    if "a mistake in" not in case:
        watch.call("train_epoch", **given)
    elif "of rank" not in case:
        caught = watch.attempt("train_epoch", **given)
        epoch["came out"] = caught["kinds"] if caught else []
        epoch["met"] = getattr(given["batches"], "met", True)  # (who asks for them by number does not)
    else:  # the others wait for this rank, and are stopped
        epoch["came out"] = []
        with watch.step("an epoch with a mistake in one rank's program", batches=batches):
            try:
                watch.answers["train_epoch"](*given.values())
            except inside.Outcome as outcome:
                if not isinstance(outcome.__cause__, Exception):
                    raise
                epoch["came out"] = [kind.__name__ for kind in type(outcome.__cause__).__mro__]


def _error(kind: str, text: int) -> BaseException:
    if kind == "UnicodeDecodeError":
        return UnicodeDecodeError("utf-8", b"\xff", 0, 1, "a broken file")
    words = TEXTS[text % len(TEXTS)]  # (or none at all)
    return OWN.get(kind, getattr(builtins, kind, Exception))(*([words] if words else []))


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    if "a mistake in" in case:
        yield from _defect(case, world)
        return
    found = [facts["epochs"][0] for facts in world]
    good = [[rank for rank in range(len(world)) if rank not in broken] for broken in case["broken per step"]]
    updated = [step for step in range(STEPS) if good[step]]
    if len(world) > 1 and not any(facts["calls"] for facts in found):
        yield Broken("value:alone", "train_epoch calls no collective: each rank updates with its own gradient")
    for rank, facts in enumerate(found):
        expected = [one for step in range(STEPS) for one in [f"gradient {step}", *["update"] * (step in updated)]]
        if facts["log"] != expected:
            yield from _log(facts["log"], expected, case["broken per step"], len(world), rank)
            continue
        for step, got in zip(updated, facts["updates"], strict=True):
            terms = [gradient_of(case, other, step) for other in good[step]]
            yield from _update(got, terms, case, step, rank)
        why = "put the number of good batches behind the gradient, and it is added up along with it"
        largest = 4 * case["features"] + AROUND
        yield from talk.judge_calls(facts, CALLS * STEPS, largest, f"{STEPS} steps", why, rank)


def _update(got: Any, terms: list[Any], case: Case, step: int, rank: int) -> Iterator[Broken]:
    import torch

    total, own = sum(terms), gradient_of(case, rank, step)
    guesses = {"is nan: a step without any good batch has no update": torch.full_like(own, torch.nan)}
    if len(terms) < case["ranks"]:
        words = "counts a broken batch as a gradient of 0: divide by the number of good batches, not of ranks"
        guesses[words] = total / case["ranks"]
    if len(terms) > 1:
        guesses["is the gradient of this rank alone: the ranks no longer average"] = own
        guesses["is the sum over the good batches, not their mean"] = total
    what = f"the update of step {step}"
    yield from compare("value:update", what, got, terms, 1 / len(terms), guesses, rank=rank)


def _log(log: list[str], expected: list[str], broken: list[list[int]], ranks: int, rank: int) -> Iterator[Broken]:
    shorter = min(len(log), len(expected))
    place = next((n for n in range(shorter) if log[n] != expected[n]), shorter)
    step = sum(one != "update" for one in expected[:place]) - 1
    seen, needed = ([*one, "nothing more"][min(place, len(one))] for one in (log, expected))
    figures = f"{seen} after gradient {step}", needed, rank
    if seen == "update" and len(broken[step]) == ranks:
        words = "updates in a step without any good batch: the optimizer's momentum would move the weights"
        yield Broken("value:no update", f"train_epoch {words}", *figures)
    elif log.count("update") == expected.count("update") or log[place - 1 : place + 1] == [seen, seen]:
        words = "calls gradient(batch) and update(mean) in another order: once each, step by step"
        yield Broken("value:order", f"train_epoch {words}", *figures)
    elif needed == "update" and rank in broken[step]:
        words = "does not update where its own batch is broken: its weights then differ from the others'"
        yield Broken("value:own update", f"train_epoch {words}", *figures)
    elif needed == "update" and broken[step]:
        words = "does not update where another rank's batch is broken: the good batches are thrown away"
        yield Broken("value:all skip", f"train_epoch {words}", *figures)
    else:
        words = "calls gradient(batch) and update(mean) in another order: once each, step by step"
        yield Broken("value:order", f"train_epoch {words}", *figures)


def _defect(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    """A mistake in the program must come out of the rank that has it, so that torchrun sees it and ends the others."""
    where = case["a mistake in"]
    least = max(len(facts["epochs"]) for facts in world)
    before = 2 * case["step"] + {"batches": 0, "gradient": 1, "update": 2}[where]  # calls, with that of the mistake
    of = f"{where}{'(…)' * (where != 'batches')}"
    for facts in world:
        if len(facts["epochs"]) < least or any("came out" not in epoch for epoch in facts["epochs"]):
            kind = facts["epochs"][-1]["kind"]
            yield Broken("value:some", f"a {kind} of {of} on all ranks does not come out on all")
            return
    for rank, facts in enumerate(world):
        for epoch in facts["epochs"] if case.get("of rank", rank) == rank else ():
            if not epoch.get("met", True):
                continue
            kinds, mistake = epoch["came out"], f"a {TOLD.get(epoch['kind'], epoch['kind'])} of {of}"
            as_generators = epoch["kind"] == "StopIteration" and "RuntimeError" in kinds  # make it, says Python
            if epoch["kind"] not in kinds and not as_generators:
                why = "a mistake in the program is no broken batch, and torchrun must hear of it"
                if where != "gradient":
                    why = "only a ValueError of gradient(batch) means a broken batch"
                elif epoch["kind"] == "StopIteration":
                    why += " (`for`, `map` and `next` take it for the end of what they go through)"
                came = f"a {kinds[0]} came out" if kinds else "nothing came out, and the rank went on"
                words = f"train_epoch swallows {mistake}: {why}"
                yield Broken("value:swallowed", words, came, f"a {epoch['kind']}", rank)
            elif later := [call for call in epoch["log"][before:] if call != "update"]:
                words = f"train_epoch goes on after {mistake}, and lets it out later: torchrun must hear of it at once"
                yield Broken("value:late", words, f"{later[0]} after it", rank=rank)


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    plain = [(case, world) for case, world in played if "a mistake in" not in case]
    calls = max(len(epoch["calls"]) for _, world in plain for facts in world for epoch in facts["epochs"])
    return {
        "ranks": talk.world_sizes(played),
        "broken batches": sum(int(case["broken batches"]) for case, _ in plain),
        "collectives": f"{calls} in {STEPS} steps",
        "mistakes in the program": f"{len(played) - len(plain)}, all of them come out",
    }


_RULES = {"wire": lambda *_: talk.any_collective(1000, 10**7), "same_calls": False}
CONTRACT = Contract(
    name="torchrun.swallowed",
    rules={
        "train_epoch": Rules(**_RULES),
        "an epoch with a mistake in one rank's program": Rules(**_RULES, allows=("wire:disagree",)),
    },
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        ("value:alone", "{}"),
        ("value:some", "{}: a mistake in the program is no broken batch, and torchrun must hear of it"),
        ("wire:unwaited *", "{}"),
        ("state:*", "{}"),
        ("value:swallowed", "{}"),
        ("value:no update", "{}"),
        ("wire:other *", "{}: collectives are enough"),
        (
            "wire:disagree",
            "{}. A rank that skips a broken batch skips its collective too: in each step every rank must take part",
        ),
    ),
    figures=figures,
)
