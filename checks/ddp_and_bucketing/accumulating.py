"""Exercise 4: the class ``Accumulating(model)`` with ``no_sync()`` and ``finish()``: micro-batches in silence."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from checks.contracts import Broken, Case, Contract, Facts, Rules
from checks.ddp_and_bucketing import gradients

if TYPE_CHECKING:
    from torch import Tensor


class BatchError(ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError):
    """Of many kinds at once: whoever swallows one of them swallows it."""


class Cancelled(BaseException):
    """None of Python's own, and no Exception, as asyncio and libraries of tests have them."""


OTHERS = (KeyboardInterrupt, StopIteration, SystemExit)
EXCEPTIONS = {one.__name__: one for one in (BatchError, Cancelled, *OTHERS)}
# What leaving a block may change no more than anybody else.
LEFT_ALONE = ("value", "grad", "training", "requires_grad", "is", "memory", "dtype", "shape")
# What precedes the micro-batch that is synchronised.
STEPS = ("no block", "a block", "an exception in a block", "a block in a block", "no_sync() without with",
         "a block of the other object")  # fmt: skip

OUTER = "a block whose inner block has ended"


def draw(rng: random.Random) -> list[Case]:
    cases: list[Case] = []
    types = rng.sample(("float64", "float32"), 2)
    for ranks, kind in zip((3, rng.choice((2, 4))), types, strict=True):
        steps = ["a block", *rng.sample(STEPS, 3)] if ranks != 3 else [*rng.sample(STEPS, len(STEPS)), "a block"]
        raised = rng.sample(list(EXCEPTIONS), len(EXCEPTIONS) if ranks == 3 else 2)
        how: Case = {"type": kind, "exceptions": ", ".join(raised)}
        micro = [rng.randint(3 if step == "a block in a block" else 2, 5) for step in steps]
        cases.append({"ranks": ranks, **how, "steps": steps, "micro-batches": micro, "seed": rng.getrandbits(30)})
    return cases


def scene(case: Case, watch: Any, facts: Facts) -> None:
    Scene(case, watch, facts).play()


class Scene:
    """Trainings with micro-batches, of two models in turn, each with an object of the learner's."""

    def __init__(self, case: Case, watch: Any, facts: Facts) -> None:
        from checks.contracts import scenery, snapshot

        self.case, self.watch, self.facts, self.scenery, self.snapshot = case, watch, facts, scenery, snapshot
        self.models = [scenery.model(case["seed"] + number, types=case["type"]) for number in range(2)]
        facts |= {"sizes": [gradients.sizes(model) for model in self.models], "steps": [], "silent": []}
        self.twins = [scenery.twin(model) for model in self.models]
        self.objects = [watch.call("Accumulating", model=model) for model in self.models]
        self.optimizers = [scenery.Momentum(list(model.parameters())) for model in self.models]
        self.count, self.silent_ones = 0, set()  # which objects may hold gradients for their next all-reduce

    def play(self) -> None:
        for step, (kind, micro) in enumerate(zip(self.case["steps"], self.case["micro-batches"], strict=True)):
            self.number, self.parts = step % 2, 1
            if kind in ("a block", "a block in a block"):
                self.parts = micro
            self.begin()
            self.before(kind)
            self.micro_batch(f"the last micro-batch, after {kind}, of {'AB'[self.number]},", self.number)
            self.note(kind)
            self.optimizers[self.number].step()

    def begin(self) -> None:
        """zero_grad(), and the twin gets the numbers of the model."""
        model, twin = self.models[self.number], self.twins[self.number]
        for mine, theirs in zip(twin.parameters(), model.parameters(), strict=True):
            mine.data.copy_(theirs.detach())
            mine.grad = theirs.grad = None

    def before(self, kind: str) -> None:
        mine, other = self.objects[self.number], self.objects[1 - self.number]
        if kind == "a block":
            with self.block(mine):
                for _ in range(self.parts - 1):
                    self.silent(kind)
        elif kind == "a block in a block":
            with self.block(mine):
                with self.block(mine):
                    self.silent(kind)
                with self.block(mine, BatchError.__name__):
                    pass
                for _ in range(self.parts - 2):
                    self.silent(OUTER)
        elif kind == "an exception in a block":
            for name in self.case["exceptions"].split(", "):
                with self.block(mine, name):
                    self.silent("a block")
                self.begin()
        elif kind == "no_sync() without with":
            with self.step("no_sync()", mine):
                mine.no_sync()
        elif kind == "a block of the other object":
            with self.block(other):
                self.micro_batch(f"the last micro-batch, after {kind}, of {'AB'[self.number]},", self.number)
                self.note(kind)
            self.begin()

    @contextlib.contextmanager
    def block(self, wrapped: Any, exception: str = "") -> Iterator[None]:
        """A learner's ``with`` block, ended by an exception or not; entering and leaving it are calls of the answer."""
        before = self.snapshot.Snapshot({"model": self.models})
        with contextlib.ExitStack() as stack:
            with self.step("no_sync()", wrapped):
                context = wrapped.no_sync()
                leave = type(context).__exit__
                type(context).__enter__(context)
            stack.callback(self.leave, wrapped, context, leave, exception, before)
            yield

    def leave(self, wrapped: Any, context: Any, leave: Any, exception: str, before: Any) -> None:
        error = EXCEPTIONS[exception]("a batch cannot be read") if exception else None
        inside = self.snapshot.Snapshot({"model": self.models})
        with self.step("the end of no_sync()", wrapped) as record:
            try:
                if leave(context, *((type(error), error, None) if error else (None, None, None))) and error:
                    self.facts["swallowed"] = exception
            except BaseException as raised:
                if raised is not error:
                    raise
        after = self.snapshot.Snapshot({"model": self.models})
        record["changes"] = [one for one in before.changes_to(after)
                             if one[0].endswith(".attributes") and ".grad." not in one[0]]  # fmt: skip
        record["changes"] += [one for one in inside.changes_to(after) if one[0].rpartition(".")[2] in LEFT_ALONE]

    @contextlib.contextmanager
    def step(self, rules: str, wrapped: Any) -> Iterator[Any]:
        with self.watch.step(rules, wrapped) as record:
            record["of"] += f" {id(wrapped) in self.silent_ones}"
            yield record

    def silent(self, kind: str) -> None:
        """A micro-batch inside a block, and what has added up so far."""
        self.silent_ones.add(id(self.objects[self.number]))
        self.micro_batch(f"a micro-batch in {kind}", self.number)
        own, got = (self.snapshot.gradients(m[self.number]) for m in (self.twins, self.models))
        self.facts["silent"].append({"kind": kind, "call": len(self.watch.records) - 1, "own": own, "got": got})

    def micro_batch(self, rules: str, number: int) -> None:
        import torch.distributed as dist

        self.count += 1
        seed = 1000 * self.case["seed"] + 10 * self.count + dist.get_rank()
        model, twin, wire = self.models[number], self.twins[number], self.watch.wire
        self.before_last = self.snapshot.gradients(twin)
        (self.scenery.loss(twin, seed) / self.parts).backward()
        lost = self.scenery.loss(model, seed) / self.parts
        with self.watch.step(rules, self.objects[number], model=model):
            wire.phase = "backward"
            lost.backward()
            wire.phase = "finish()"
            self.objects[number].finish()

    def note(self, kind: str) -> None:
        self.silent_ones.discard(id(self.objects[self.number]))
        own = self.snapshot.gradients(self.twins[self.number])
        last = {name: own[name] - self.before_last[name] if name in self.before_last else own[name] for name in own}
        found = {"kind": kind, "call": len(self.watch.records) - 1, "parts": self.parts, "own": own, "last": last}
        self.facts["steps"].append(found | {"got": self.snapshot.gradients(self.models[self.number])})


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    import torch

    for rank, facts in enumerate(world):
        if facts.get("swallowed"):
            words = f"a {facts['swallowed']} inside the no_sync() block does not come out: use try … finally"
            words += ", or let __exit__ return None"
            yield Broken("value:swallowed", words, rank=rank)
        for one in facts["silent"]:
            for name, own in one["own"].items():
                if name not in one["got"] or not torch.equal(one["got"][name], own):
                    words = "is not what has added up on this rank, which has to stay there"
                    words = f"in {one['kind']}, `{name}.grad` {words}"
                    yield Broken("value:silent", words, rank=rank, call=one["call"])
    for number, step in enumerate(world[0]["steps"]):
        yield from gradients.judge_means(
            world, number, step["call"], lambda name, rank, n=number: _guesses(world, n, name, rank)
        )


def _guesses(world: Sequence[Facts], number: int, name: str, rank: int) -> dict[str, Tensor]:
    """What a gradient is after mistakes with micro-batches."""
    steps, ranks = [facts["steps"][number] for facts in world], len(world)
    if (parts := steps[0]["parts"]) == 1:
        return {}
    mean, last = (sum(one[kind][name].double() for one in steps) / ranks for kind in ("own", "last"))
    mixed = steps[rank]["own"][name] - steps[rank]["last"][name] + last
    return {
        f"is divided by the {parts} micro-batches, too: the training loop has done that": mean / parts,
        f"is {parts} times too large: the gradients of the micro-batches add up by themselves": mean * parts,
        "is averaged for the last micro-batch only: average what has added up in `.grad`": mixed,
    }


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    steps = [one for _, world in played for one in world[0]["steps"]]
    return {
        "micro-batches without a collective": sum(len(world[0]["silent"]) for _, world in played),
        "synchronised": len(steps),
        "models": gradients.models_in(played, 2),
    }


_SILENT = "inside no_sync(), and as it ends, a gradient only adds up on its own rank"
CONTRACT = Contract(
    name="ddp_and_bucketing.no_sync",
    rules={
        "Accumulating": Rules(changes=("*.hooks.added", "around.the process groups"), wire=None),
        "no_sync()": Rules(),
        "the end of no_sync()": Rules(),
    }
    | {
        f"a micro-batch in {kind}": Rules(changes=(*gradients.GRADIENTS, "model.*.grad"))
        for kind in ("a block", "a block in a block", OUTER)
    }
    | {
        f"the last micro-batch, after {kind}, of {'AB'[number]},": Rules(
            changes=(*gradients.GRADIENTS, "model.*.grad"),
            wire=gradients.by_model(gradients.once, number),
            surplus=lambda facts, number=number: gradients.surplus(facts, number),
        )
        for number in (0, 1)
        for kind in STEPS
    },
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        ("wire:other *", f"{{}}: {_SILENT}"),
        ("value:swallowed", "{}"),
        *gradients.MISTAKES,
    ),
    refused=gradients.REFUSED,
    figures=figures,
)
