"""Exercise 5: the class ``Server(weights, workers, bound, lr)`` with ``pull`` and ``push``.

A scene plays a schedule: workers of different speeds ask two servers in a drawn order. Who asks when is no matter of
clocks, so who has to wait is not either, and what every answer has to be follows from the list of events.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts, Rules, compare

MOST_STEPS = 40  # a worker that nobody stops is stopped here
EVENTS = 140  # in a schedule
Event = dict[str, Any]


def draw(rng: random.Random) -> list[Case]:
    """The first ones are about one fast worker; a bound of 0, a single worker, and more of both come in each check."""
    cases: list[Case] = [
        {"play": "one fast worker", "workers": rng.randint(2, 4), "bound": bound} for bound in (2, 0, 5)
    ]
    cases.append({"play": "pull and push in step", "workers": 3, "bound": 0})
    cases.append({"play": "a very late push", "workers": rng.randint(2, 3), "bound": rng.randint(12, 18)})
    for workers, bound in ((2, 2), (3, 1), (3, 0), (rng.randint(4, 6), rng.randint(2, 4)), (1, rng.randint(0, 2))):
        cases.append({"play": "in any order", "workers": workers, "bound": bound})
    for number, case in enumerate(cases):  # (of these rates float32 knows none exactly)
        case |= {"ranks": 1, "type": ("float64", "float32")[number % 2], "lr": rng.choice((0.1, 0.3, 0.7))}
        case |= {"shape": rng.choice(("3", "2 × 3", "1")), "seed": rng.getrandbits(30)}
    return cases


def scene(case: Case, watch: Any, facts: Facts) -> None:
    facts["servers"] = []
    players = [_Player(case, watch, number) for number in range(2)]  # two servers, each with its own workers
    facts["servers"] = [{"events": player.events, "first": player.first} for player in players]
    dice = random.Random(case["seed"])
    with watch.step(
        "Server (pull and push)", players[0].server, **{f"weights of server {p.number}": p.weights for p in players}
    ):
        if case["play"] == "one fast worker":
            players[0].run_ahead(dice)
            return
        if case["play"] == "a very late push":
            players[0].be_late()
            return
        for _ in range(EVENTS):
            player = players[dice.random() < 0.3]
            if not player.over:
                player.one_event(dice, case["play"])


class _Player:
    """A learner's server, its workers, and what has happened between them."""

    def __init__(self, case: Case, watch: Any, number: int) -> None:
        import torch

        self.case, self.number = of_server(case, number), number
        self.workers = self.case["workers"]
        self.generator = torch.Generator().manual_seed(case["seed"] + number)
        self.weights = self._random()
        self.first = self.weights.clone()
        arguments = {name: self.case[name] for name in ("workers", "bound", "lr")}
        self.server = watch.call("Server", weights=self.weights, **arguments)
        self.events: list[Event] = []
        self.held: dict[int, tuple[Any, Any]] = {}  # weights in a worker's hands, and as they were
        self.speeds = random.Random(case["seed"] + number).choices((1, 2, 6), k=self.workers)
        self.turn, self.over = 0, False

    def _random(self) -> Any:
        import torch

        shape = [int(one) for one in self.case["shape"].split(" × ")] + [2] * self.number
        numbers = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        return numbers.to(getattr(torch, self.case["type"]))

    def pull(self, worker: int) -> bool:
        """Whether the worker got weights."""
        import torch

        got = self.server.pull(worker)
        weights = got.detach().clone() if isinstance(got, torch.Tensor) else None
        kind = "" if got is None or weights is not None else type(got).__name__
        self.events.append({"what": "pull", "worker": worker, "weights": weights, "kind": kind})
        self.over |= bool(kind)
        if weights is not None:
            self.held[worker] = got, weights
        return weights is not None

    def push(self, worker: int) -> None:
        from checks.contracts.snapshot import Snapshot

        weights, before = self.held.pop(worker)
        gradient = self._random()
        copy, was = gradient.clone(), Snapshot({"gradient": gradient})
        kept = weights.equal(before)
        got = self.server.push(worker, gradient)
        changed = bool(was.changes_to(Snapshot({"gradient": gradient})))
        event = {"what": "push", "worker": worker, "gradient": copy, "kept": kept, "changed": changed}
        number = got if isinstance(got, int) and not isinstance(got, bool) else None
        self.events.append(event | {"got": number, "kind": type(got).__name__})
        gradient.data.zero_()  # the worker needs its place for the next one

    def step(self, worker: int) -> bool:
        if may := self.pull(worker):
            self.push(worker)
        return may

    def run_ahead(self, dice: random.Random) -> None:
        """Worker 0 goes as far as it may, then another pulls, and pushes."""
        for moment in ("alone", "after pulls", "after pushes"):
            for _ in range(MOST_STEPS):
                if not self.step(0):
                    break
            others = dice.sample(range(1, self.workers), self.workers - 1)
            for worker in others if moment == "alone" else ():
                self.pull(worker)
            for worker in others if moment == "after pulls" else ():
                if worker in self.held:
                    self.push(worker)

    def be_late(self) -> None:
        """Worker 0 pulls when it is ahead of all others, and pushes when they are as far ahead of it as they may be."""
        for _ in range(self.case["bound"]):
            self.step(0)
        self.pull(0)
        for _ in range(MOST_STEPS):
            for worker in range(1, self.workers):
                self.step(worker)
        if 0 in self.held:
            self.push(0)
        self.pull(0)

    def one_event(self, dice: random.Random, play: str) -> None:
        if play == "in any order":
            worker = dice.choices(range(self.workers), self.speeds)[0]
            self.push(worker) if worker in self.held else self.pull(worker)
            return
        turn, worker = divmod(self.turn, self.workers)
        self.turn += 1
        if turn % 2 == 0:
            self.pull(worker)
        elif worker in self.held:
            self.push(worker)


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    for number, one in enumerate(world[0]["servers"]):
        yield from _judge_server(of_server(case, number), one["events"], one["first"])


def of_server(case: Case, number: int) -> Case:
    """The second server has one more of everything: who keeps a number in the class has it for both."""
    more = {name: case[name] + number for name in ("workers", "bound", "lr")}
    return case | more


def _judge_server(case: Case, events: Sequence[Event], first: Any) -> Iterator[Broken]:
    """Until the first event that is not as it has to be; the ones behind it follow from it."""
    done, since, terms = [0] * case["workers"], [0] * case["workers"], [first]
    for event in events:
        worker, at = event["worker"], {"call": 2}
        if event["what"] == "push":
            staleness = len(terms) - 1 - since[worker]
            broken = list(_judge_push(event, staleness))
            terms.append(-case["lr"] * event["gradient"].double())
            done[worker] += 1
        else:
            broken = list(_judge_pull(case, event, done, terms))
            if event["weights"] is not None:
                since[worker] = len(terms) - 1
        if broken:
            yield from (one.at(**at) for one in broken)
            return


def _judge_push(event: Event, staleness: int) -> Iterator[Broken]:
    if not event["kept"]:
        words = "have changed in its hands: give each worker a copy, or do not change the server's tensor in place"
        yield Broken("value:held", f"the weights that worker {event['worker']} had pulled {words}")
    if event["changed"]:
        yield Broken("value:gradient", "push changes the gradient that it was given: it belongs to the worker")
    if event["got"] is None:
        kind = "None" if event["kind"] == "NoneType" else f"a {event['kind']}"
        yield Broken("value:kind", f"push returns {kind}: it returns the staleness, an int")
    elif event["got"] != staleness:
        words = "count the updates of the others between this worker's pull and its push, before its own is applied"
        yield Broken("value:staleness", f"the staleness is not right: {words}", event["got"], staleness)


def _judge_pull(case: Case, event: Event, done: Sequence[int], terms: Sequence[Any]) -> Iterator[Broken]:
    bound, worker, waits = case["bound"], event["worker"], event["weights"] is None
    if event["kind"]:
        words = f"pull returns a {event['kind']}: it returns the weights, or None if the worker has to wait"
        yield Broken("value:kind", words)
        return
    ahead = done[worker] - min(done)
    if waits != (ahead > bound):
        seen = f"worker {worker} {'has to wait' if waits else 'goes on'}, {ahead} steps ahead of the slowest"
        yield Broken("value:bound", _why(case, done, worker, waits), f"{seen}; steps pushed: {done}", f"bound {bound}")
    elif not waits:
        types = [term.to(terms[0].dtype) if term.dtype != terms[0].dtype else term for term in terms]
        what = (
            "what pull returns, the first weights minus lr · gradient for every gradient pushed so far, late ones too,"
        )
        yield from compare("value:weights", what, event["weights"], types)


def _why(case: Case, done: Sequence[int], worker: int, waits: bool) -> str:
    """The likely mistake of a server that lets a worker wait, or go on, and should not."""
    bound, ahead = case["bound"], done[worker] - min(done)
    if waits and not ahead:
        if max(done) - min(done) > bound:
            return "the slowest worker has to wait too: then nobody ever goes on"
        return "a worker that is not ahead has to wait: a step counts when it is pushed, not when it pulls"
    if waits and case["play"] == "one fast worker" and ahead == 1 and bound > 1:
        return "everybody waits for everybody after each step, whatever the bound: that is synchronous training"
    if waits:
        exactly = "the bound is one too narrow: a worker that is exactly `bound` steps ahead may still go on"
        return exactly if ahead == bound else "a worker has to wait that is no more than `bound` steps ahead"
    pulled = "a worker has taken a step when it pushes, not when it pulls: compare the steps that it has pushed with "
    return (
        "a worker goes on that is more than `bound` steps ahead of the slowest: one step too far, or without bound? "
        f"{pulled}those of the slowest worker"
    )


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    events = [event for _, world in played for one in world[0]["servers"] for event in one["events"]]
    pushes = [event["got"] for event in events if event["what"] == "push"]
    waits = sum(event["what"] == "pull" and event["weights"] is None for event in events)
    return {"schedules": len(played), "updates": len(pushes), "largest staleness": max(pushes), "waits": waits}


CONTRACT = Contract(
    name="parameter_server_and_all_reduce.server",
    rules={"Server": Rules(), "Server (pull and push)": Rules()},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        (
            "state:weights*.value",
            "the weights that the server was given have changed: they belong to somebody else, so copy them",
        ),
        ("value:held", "{}"),
    ),
    figures=figures,
)
