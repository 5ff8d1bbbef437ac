"""Exercise 2: the class ``Overlapped(model)`` with ``finish()``: an all-reduce for each gradient in its hook.

The judging of launches and waits, without the moments, is that of exercise 3 too.
"""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from checks.contracts import Amount, Broken, Case, Contract, Facts, Rules
from checks.ddp_and_bucketing import gradients

ORDER_OF_MODELS = (0, 1, 0)  # in which model each step trains: two objects live side by side


def draw(rng: random.Random) -> list[Case]:
    cases: list[Case] = []
    for ranks in (3, rng.choice((2, 4))):
        for kind in rng.sample(("float64", "float32"), 2 if ranks == 3 else 1):
            cases.append({"ranks": ranks, "type": kind, "seed": rng.getrandbits(30)})
    return cases


def scene(case: Case, watch: Any, facts: Facts) -> None:
    models = [make(case, number) for number in range(2)]
    train(case, watch, facts, models, lambda number: watch.call("Overlapped", model=models[number]))


def make(case: Case, number: int, branches: int = 0) -> Any:
    """The same model on all ranks; every second rank may compute its branches the other way round."""
    import torch.distributed as dist

    from checks.contracts import scenery

    seed = case["seed"] + number
    model = scenery.model(seed, branches=branches or 2 + seed % 2, types=case["type"])
    if case.get("order") == "other on odd ranks" and dist.get_rank() % 2:
        model.order.reverse()
    return model


def train(case: Case, watch: Any, facts: Facts, models: list[Any], wrap: Callable[[int], Any]) -> None:
    """Steps with two models in turn, and what their gradients would be without a learner's code.

    Where a case says what is ``used`` (branches, by step and rank), what wraps a model has a ``prepare(loss)`` too.
    """
    import torch.distributed as dist

    from checks.contracts import scenery, snapshot

    wire = watch.wire
    facts |= {"sizes": [gradients.sizes(model) for model in models], "steps": []}
    twins = [scenery.twin(model) for model in models]
    last_step: list[bool] = []
    graphs: list[Any] = []  # hooks, which live as long as the graph of their step
    for one in (*models, *twins) if dist.get_rank() == 0 else ():
        scenery.goes_wrong(one, now=last_step)  # (before a learner's hooks)
    earlier = weakref.WeakSet(wire.works)  # of a case before this one: hooks of its models may keep its objects
    for model in models:  # before the learner's hooks, so that these come first
        for name, parameter in scenery.trainable(model):
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: wire.ready.append(name))
    wrapped = [wrap(number) for number in range(len(models))]
    optimizers = [scenery.Momentum(list(model.parameters())) for model in models]
    order = case.get("models", ORDER_OF_MODELS)
    for step, number in enumerate(order):
        model, twin, seed = models[number], twins[number], 1000 * case["seed"] + 10 * step + dist.get_rank()
        used = case["used"][step][dist.get_rank()] if "used" in case else None
        for one in (model, twin) if used is not None else ():
            one.order, one.gates[1] = used, 0.0  # branch 1 is used all the same, and its gradients are zero
        for mine, theirs in zip(twin.parameters(), model.parameters(), strict=True):
            mine.data.copy_(theirs.detach())
            mine.grad = None
            if theirs.grad is not None and seed % 2 == 0 and used is None:
                theirs.grad.zero_()
            else:
                theirs.grad = None
        last_step += [True] * (step == len(order) - 1)
        scenery.loss(twin, seed).backward()
        own = snapshot.gradients(twin)
        lost = scenery.loss(model, seed)
        backwards: list[Any] = []
        if used is not None:
            lost = scenery.tangled(lost) if dist.get_rank() == 0 else lost
            scenery.thrown_away(model)
            model.order = list(range(len(model.branches)))  # the graph tells what was used, and nobody else
            lost.register_hook(hook := lambda gradient, found=backwards: found.append(gradient))
            graphs.append(weakref.ref(hook))
            del hook
        with watch.step(f"a step of model {'AB'[number]}", wrapped[number], model=model) as record:
            record["of"] += f" {used}"
            if used is not None:
                wire.phase = "prepare()"
                wrapped[number].prepare(lost)
            wire.phase = "backward"
            lost.backward()
            wire.phase = "finish()"
            wrapped[number].finish()
        others = snapshot.gradients(models[1 - number]) if step else {}
        found = {"own": own, "got": snapshot.gradients(model), "others": others, "launches": launches(record)}
        found["backwards"] = len(backwards)
        facts["steps"].append(found)
        optimizers[number].step()
        if not step:
            first = weakref.WeakSet(wire.works - earlier)
    gc.collect()
    facts |= {"kept": len(first), "graph kept": any(graph() is not None for graph in graphs[:1])}


def launches(record: dict[str, Any]) -> dict[str, Any]:
    """What a step began, and when which gradient was ready."""
    names = ("bytes", "dtype", "operation", "asynchronous", "phase", "ready", "waited")
    calls = [{name: call[name] for name in names} for call in record["calls"] if call["name"] == "all_reduce"]
    return {"ready": record["ready"], "calls": calls}


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    for number, model in enumerate(ORDER_OF_MODELS):
        call = len(set(ORDER_OF_MODELS)) + number
        for rank, facts in enumerate(world):
            found = facts["steps"][number]["launches"]
            yield from judge_overlap(found, 1, rank, call)
            yield from _moments(facts["sizes"][model]["trainable"], found, rank, call)
        yield from gradients.judge_means(world, number, call)
        yield from gradients.judge_others(world, number, call)
    yield from judge_kept(world)


def judge_kept(world: Sequence[Facts]) -> Iterator[Broken]:
    """Whoever holds the work of a step that is long over holds its gradients too, those of every step in the end."""
    for rank, facts in enumerate(world):
        if facts["kept"]:
            words = (
                "what all_reduce returned in the first step is still held after the third, and its gradients with it"
            )
            yield Broken("wire:4 kept", f"{words}: forget it in finish()", f"{facts['kept']} works", 0, rank=rank)
        if facts["graph kept"]:
            words = "a node of the first step's graph is still held after the last one, and its whole graph with it"
            yield Broken("wire:4 graph", f"{words}: forget it in the next prepare()", rank=rank)


def judge_overlap(found: dict[str, Any], due: int, rank: int, call: int) -> Iterator[Broken]:
    """Launches and waits on the right side of the end of backward.

    Args:
        found: what ``launches`` noted.
        due: how many gradients are ready when the first all-reduce may go.
    """
    calls, last = found["calls"], len(found["ready"])
    where: dict[str, Any] = {"rank": rank, "call": call}
    early = [one for one in calls if one["phase"] != "finish()"]
    seen = {"measured": f"{last} of {last} gradients ready at the first launch", "expected": due}
    if calls and not early and due < last:
        words = "this is a blocking DDP: the first all_reduce starts when backward has ended, so no communication is"
        yield Broken("wire:1 blocking", f"{words} hidden behind computation. Launch it in a hook", **seen, **where)
        return
    if still := [one["phase"] for one in early if not one["asynchronous"] and one["ready"] < last]:
        place = "a hook" if still[0] == "backward" else still[0]
        words = f"all_reduce is called without async_op=True in {place}: backward stands still until it is done"
        yield Broken("wire:1 synchronous", words, **where)
        return
    waits = sum(bool(one["waited"]) and one["waited"][1] < last for one in early)
    if waits:
        words = "there is a wait while backward is still running, or before it: that stops backward. Wait in finish()"
        yield Broken("wire:1 waits", words, f"{waits} waits before the last gradient was ready", 0, **where)
        return
    if calls and due < last and all(one["ready"] == last for one in calls):
        words = "all all-reduces are launched when the last gradient is ready: then nothing is left to hide them behind"
        yield Broken("wire:1 late", words, **seen, **where)


def _moments(trainable: list[Any], found: dict[str, Any], rank: int, call: int) -> Iterator[Broken]:
    """Each gradient goes in an all-reduce of its own, launched in its own hook."""
    where: dict[str, Any] = {"rank": rank, "call": call}
    sizes = {name: (nbytes, dtype) for name, nbytes, dtype in trainable}
    sent = [(one["bytes"], one["dtype"]) for one in found["calls"]]
    if sorted(sent) != sorted(sizes.values()):
        if len(sent) < len(sizes) and sum(n for n, _ in sent) == sum(n for n, _ in sizes.values()):
            words = "several gradients travel in one all_reduce: here each parameter gets its own"
            yield Broken("wire:2 together", words, f"{len(sent)} all-reduces", len(sizes), **where)
        elif len(sent) < len(sizes):
            gone = [name for name, size in sizes.items() if size not in sent] or list(sizes)
            words = f"{len(sizes) - len(sent)} of {len(sizes)} gradients never travel, such as that of `{gone[0]}`"
            yield Broken("wire:0 lost", words, f"{len(sent)} all-reduces", len(sizes), **where)
        elif sum(n for n, _ in sent) == sum(n for n, _ in sizes.values()):
            words = "what travels are not the gradients, each by itself and in its own type"
            yield Broken("wire:2 types", words, _words(sent), _words(list(sizes.values())), **where)
        return
    for number, (one, name) in enumerate(zip(found["calls"], found["ready"], strict=False)):
        # (A hook of the tensor itself runs just before its gradient is accumulated.)
        if one["ready"] not in (number, number + 1) or (one["bytes"], one["dtype"]) != sizes[name]:
            late = "late" if one["ready"] > number else "early or late"
            words = f"an all_reduce is launched too {late}: launch each gradient in its own hook"
            measured = f"{one['ready']} gradients ready at launch {number + 1}, of {one['bytes']:,} bytes"
            yield Broken("wire:3 moment", words, measured, f"{number + 1}, the gradient of `{name}`", **where)
            return


def _words(sizes: Sequence[tuple[int, str]]) -> str:
    return ", ".join(f"{nbytes:,} ({dtype})" for nbytes, dtype in sizes[:4]) + (" …" if sizes[4:] else "")


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    steps = [facts["steps"][0]["launches"] for _, world in played for facts in world[:1]]
    return {
        "models": gradients.models_in(played, 2),
        "all-reduces in each step": ", ".join(str(len(one["calls"])) for one in steps),
        "gradients ready at the first launch": f"{steps[0]['calls'][0]['ready']} of {len(steps[0]['ready'])}",
        "waits inside backward": 0,
    }


# A constructor puts hooks on trainable parameters, and may talk to other ranks, in a group of its own too.
CONSTRUCTOR = Rules(changes=("*.hooks.added", "around.the process groups"), wire=None)


def steps(amount: Callable[[Facts, int], Amount]) -> dict[str, Rules]:
    """Rules of a step with each model, by how much may travel."""
    return {
        f"a step of model {'AB'[number]}": Rules(
            changes=(*gradients.GRADIENTS, "model.*.grad"),
            wire=gradients.by_model(amount, number),
            surplus=lambda facts, number=number: gradients.surplus(facts, number),
        )
        for number in (0, 1)
    }


STEPS = steps(gradients.once)
MISTAKES = (
    ("wire:more * travel*", "{}"),
    *gradients.MISTAKES,
    ("wire:0 *", "{}"),
    ("wire:none *", "{}"),
    ("wire:1 *", "{}"),
    ("wire:2 *", "{}"),
    ("wire:more *", "{}"),
    ("wire:4 kept", "{}"),
)

CONTRACT = Contract(
    name="ddp_and_bucketing.overlap",
    rules={"Overlapped": CONSTRUCTOR, **STEPS},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=MISTAKES,
    refused=gradients.REFUSED,
    figures=figures,
)
