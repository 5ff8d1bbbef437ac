"""Exercise 5: ``pipeline_step(stage, shape, batch, targets, loss_fn, micro_batches)``, a stage on each real rank."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Amount, Broken, Case, Contract, Facts, Rules
from checks.model_parallelism.one_device import judge_numbers, reference
from checks.model_parallelism.schedules import right_schedule

PRELOAD = ("checks.model_parallelism.marked",)
LOSSES = ("mse_loss", "cross_entropy", "smooth_l1_loss")
FUNCTION, LIBRARY = "pipeline_step", "torch.distributed.pipelining"


def draw(rng: random.Random) -> list[Case]:
    """The lab's example first; more and fewer micro-batches than ranks, sizes that differ, a second step."""
    sizes = [(2, 3, 8), (2, rng.randint(4, 6), rng.randint(9, 17)), (2, 1, rng.randint(1, 5))]
    sizes += [(3, rng.randint(4, 7), rng.randint(9, 17)), (3, 2, rng.randint(3, 9))]
    sizes += [(4, rng.randint(5, 8), rng.randint(9, 17)), (4, 2, rng.randint(4, 9))]  # (fewer than a warm-up has)
    cases: list[Case] = []
    for number, (ranks, m, samples) in enumerate(sizes):
        case: Case = {"ranks": ranks, "micro-batches": m, "samples": samples, "steps": 1 + (number % 2)}
        case |= {"loss": LOSSES[number % 3], "type": "float64" if number in (1, 2, 6) else "float32"}
        cases.append(case | {"dimensions": 3 if number in (3, 5) else 2, "seed": rng.getrandbits(30)})
        if cases[-1]["loss"] == "cross_entropy":
            cases[-1]["dimensions"] = 2
    return cases


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import sys

    import torch
    import torch.distributed as dist

    from checks.contracts.snapshot import gradients
    from checks.model_parallelism import marked

    rank, last = dist.get_rank(), case["ranks"] - 1
    stage = marked.pipeline(case)[rank]
    marks = marked.Marks(watch.wire)
    marks.on(stage)
    shape, loss_fn = marked.shapes(case)[rank], getattr(torch.nn.functional, case["loss"])
    facts["steps"] = []
    for number in range(case["steps"]):
        batch, targets = marked.data(case, number)
        given = {"batch": batch if rank == 0 else None, "targets": targets if rank == last else None}
        step: Facts = {"before": gradients(stage)}
        facts["steps"].append(step)
        marks.begin()
        arguments = {
            "stage": stage,
            "shape": shape,
            **given,
            "loss_fn": loss_fn,
            "micro_batches": case["micro-batches"],
        }
        with watch.step(FUNCTION, **arguments) as record:
            got = watch.answers[FUNCTION](*arguments.values())
        step |= {"library": LIBRARY in sys.modules, "left": marks.left(inputs=rank > 0)}
        step |= {"passes": marks.passes, "graphs": marks.graphs, "inputs": marks.inputs}
        step |= {"gradients": gradients(stage), "calls": record["calls"]}
        tensor = isinstance(got, torch.Tensor)
        step["got"] = {"kind": "tensor" if tensor else type(got).__name__, "place": ""}
        step["got"]["value"] = got.detach().clone() if tensor else None


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    for number in range(case["steps"]):
        steps = [facts["steps"][number] for facts in world]
        for rank, step in enumerate(steps):
            if step["library"]:
                words = f"{FUNCTION} uses {LIBRARY}, which does the exercise: write it yourself, that is the point"
                yield Broken("ready:", words, rank=rank, call=number)
            yield from (one.at(rank=rank, call=number) for one in _passes(case, step, rank))
            yield from (one.at(rank=rank, call=number) for one in _messages(case, step, rank))
        yield from (one.at(call=number) for one in _numbers(case, steps, number))
        for rank, step in enumerate(steps[:-1]):
            if step["got"]["kind"] != "NoneType":
                words = "the last rank alone knows the loss; the others return None"
                yield Broken("value:4 none", words, step["got"]["kind"], "None", rank, number)


def _passes(case: Case, step: Facts, rank: int) -> Iterator[Broken]:
    p, m = case["ranks"], case["micro-batches"]
    found, wanted = step["passes"], right_schedule(rank, p, m)
    if found != wanted:
        forwards = [f"F{k}" for k in range(m)]
        why = "in another order than 1F1B's list"
        if Counter(found)["F0"] > 1 or len(found) > len(wanted):
            why = "more than one forward and one backward for each micro-batch"
        elif len(found) < len(wanted):
            why = "not one forward and one backward for each micro-batch"
        elif found == forwards + [f"B{k}" for k in range(m)]:
            why = "all forwards first: that is GPipe, which keeps the activations of all micro-batches"
        elif found == [item for k in range(m) for item in (f"F{k}", f"B{k}")]:
            why = "one micro-batch after the other: so the other ranks have nothing to do"
        yield Broken("work:order", f"the stage runs {why}", " ".join(found) or "no pass", " ".join(wanted))
    most = min(p - rank, m)
    if step["graphs"] > most:
        words = "there are the activations of too many micro-batches: does something keep a graph after its backward?"
        yield Broken("memory:graphs", words, f"those of {step['graphs']}", f"those of {most}")
    elif rank and step["inputs"] > most + 1:
        words = "there are the inputs of too many micro-batches: after its backward nothing may hold on to one, "
        words += "and a loss that is not detached does"
        yield Broken("memory:inputs", words, f"{step['inputs']} inputs", f"{most}, and one for a moment")
    elif step["left"]:
        words = "after the step an input or a graph of a micro-batch is still held: nothing of them may stay"
        yield Broken("memory:left", words, step["left"], 0)


def _messages(case: Case, step: Facts, rank: int) -> Iterator[Broken]:
    """To each neighbour m messages of the right size, each before the rank's next pass begins."""
    from checks.model_parallelism import marked

    p, m, samples = case["ranks"], case["micro-batches"], case["samples"]
    calls = [call for call in step["calls"] if call["name"] in ("send", "recv")]
    if far := sorted({call["peer"] for call in calls if abs(call["peer"] - rank) != 1}):
        words = f"messages go to rank {far[0]} or come from it, which is no neighbour"
        yield Broken("copies:0 far", f"{words}: outputs go to the next rank, gradients back", f"rank {far[0]}")
        return
    for peer in (rank - 1, rank + 1):
        if not 0 <= peer < p:
            continue
        sent = [call for call in calls if call["name"] == "send" and call["peer"] == peer]
        each = marked.bytes_of(case, max(rank, peer))
        rows = [call["bytes"] / each for call in sent]
        what = "outputs" if peer > rank else "gradients"
        figures = f"samples in the messages: {', '.join(f'{one:g}' for one in rows) or 'none'}"
        least = samples // m
        if len(rows) != m or sum(rows) != samples or not all(one in (least, least + 1) for one in rows):
            words = (
                f"these are not the {what} for rank {peer}: one message for each micro-batch, which differ by at most "
            )
            yield Broken("copies:1 sizes", words + "one sample", figures, f"{m} messages, {samples} samples")
            continue
        kind = "F" if peer > rank else "B"
        after = [number + 1 for number, item in enumerate(step["passes"]) if item[0] == kind]
        late = [k for k, (call, place) in enumerate(zip(sent, after, strict=False)) if call["phase"] != str(place)]
        if late:
            words = (
                f"what {kind}{late[0]} gives goes to rank {peer} too late: the neighbour waits for it, and this rank "
            )
            yield Broken("copies:2 late", words + "begins another pass first", f"late: {len(late)} of {m} messages")


def _numbers(case: Case, steps: Sequence[Facts], number: int) -> Iterator[Broken]:
    import torch
    from torch.utils._pytree import tree_map

    from checks.model_parallelism import marked

    model, (batch, targets) = marked.pipeline(case).double(), marked.data(case, number)
    wide = [one.double() if one.is_floating_point() else one for one in (batch, targets)]
    right = reference(model, *wide, getattr(torch.nn.functional, case["loss"]), case["micro-batches"], parts=True)
    step = tree_map(lambda one: one.to(getattr(torch, case["type"])) if torch.is_tensor(one) else one, right)
    for name in ("gradients", "before"):
        step[name] = {f"{rank}.{key}": one for rank, each in enumerate(steps) for key, one in each[name].items()}
    yield from judge_numbers(step | {"got": steps[-1]["got"], "last": ""}, case["micro-batches"])


def _wire(case: Case, rank: int, facts: Facts) -> dict[str, Amount]:
    from checks.model_parallelism import marked

    borders = [border for border in (rank, rank + 1) if 0 < border < case["ranks"]]
    nbytes = sum(marked.bytes_of(case, border) for border in borders) * case["samples"]
    amount = Amount(len(borders) * case["micro-batches"], nbytes)
    return {"send": amount, "recv": amount}


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    case, world = next((case, world) for case, world in played if case["ranks"] == 4)
    most = [max(step["graphs"] for step in facts["steps"]) for facts in world]
    return {
        "ranks": ", ".join(str(one) for one in dict.fromkeys(case["ranks"] for case, _ in played)),
        "steps": sum(case["steps"] for case, _ in played),
        f"micro-batches in flight on ranks 0 to 3, of {case['micro-batches']}": ", ".join(map(str, most)),
    }


MISTAKES = (
    ("wire:alone", "{}"),
    ("wire:misfit", "{}. Has the place the shape and the type of what arrives?"),
    ("wire:other *", "{}: each output goes to the next rank, and each gradient back"),
    ("wire:unwaited *", "{}. Otherwise nobody knows whether the message has left, or arrived"),
    ("wire:changed *", "{}"),
    ("state:*", "{}"),
    ("around:*", "{}"),
    ("work:order", "{}"),
    ("copies:0 *", "{}"),
    ("copies:1 *", "{}"),
    ("value:1 *", "{}"),
    ("value:2 *", "{}"),
    ("value:3 *", "{}"),
    ("memory:*", "{}"),
    ("copies:2 *", "{}"),
    ("value:4 *", "{}"),
    ("wire:*", "{}"),
)
CONTRACT = Contract(
    name="model_parallelism.on_real_ranks",
    rules={FUNCTION: Rules(changes=("stage*.grad", "stage*.grad.*"), wire=_wire, same_calls=False)},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=MISTAKES,
    figures=figures,
)
