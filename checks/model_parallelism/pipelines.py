"""Exercises 2 and 4: a step of a pipeline, with GPipe and with 1F1B, seen from all GPUs.

Only matrix products take time on these GPUs. So what is idle is idle because of the order of the work, and with stages
of equal cost the formula for the bubble is exact.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts, Rules, races
from checks.model_parallelism.one_device import judge_numbers, reference
from checks.model_parallelism.schedules import right_schedule

PRELOAD = ("checks.model_parallelism.stages", "torch.distributed.tensor")
GPIPE, ONE_F_ONE_B = "gpipe_step", "one_f_one_b_step"
BUBBLE_TOLERANCE = 0.05
ONE_MORE = 0.9  # of a micro-batch: what may be held for a moment beside the micro-batches that wait for backward
TURNS = {"twice": (0, 0), "two pipelines": (0, 1, 0)}  # in which order pipelines are trained
LOSSES = ("mse_loss", "cross_entropy", "smooth_l1_loss")


def draw(rng: random.Random) -> list[Case]:
    """Four GPUs and eight micro-batches first; uneven batches, few micro-batches and one GPU in each check."""
    shapes = [(4, 8, 512, True), (3, 4, 10, True), (4, 6, 8, False), (1, 3, 192, True), (3, 2, 128, True)]
    p, m = rng.choice((2, 2, 5)), rng.randint(2, 5)
    shapes += [(p, m, m * rng.randint(48, 80), True)]
    shapes += [(rng.randint(2, 4), m := rng.randint(1, 5), m * rng.randint(9, 19) + rng.randint(1, m), False)]
    cases = []
    for number, (p, m, samples, equal) in enumerate(shapes):
        case: Case = {"ranks": 1, "gpus": p + (number > 1 and rng.randint(0, 1)), "stages": p, "micro-batches": m}
        case |= {"samples": samples, "stages cost": "the same" if equal else "different"}
        case["play"] = {0: "twice", 1: "two pipelines"}.get(number, "once")
        case["gradients before"] = "some" if number in (2, 4) else "none"
        cases.append(case | {"loss": LOSSES[number % 3], "seed": rng.getrandbits(30)})
    return cases


def play(case: Case, watch: Any, facts: Facts, function: str) -> None:
    """Steps of two pipelines in turn; the first is trained in between."""
    import torch
    from torch.nn import functional

    import simgpu
    from checks.contracts import gpus, snapshot
    from checks.data_parallel_internals.nets import copy_state
    from checks.model_parallelism import stages

    stages.ideal_cluster(case["gpus"])
    torch.set_num_threads(1)  # these tensors are small: more threads would only wait for each other
    p, m, n, equal = case["stages"], case["micro-batches"], case["samples"], case["stages cost"] == "the same"
    loss_fn = getattr(functional, case["loss"])
    turns = TURNS.get(case["play"], (0,))
    twins = [stages.pipeline(case["seed"] + number, p, equal, torch.float32) for number in range(max(turns) + 1)]
    models = [stages.pipeline(case["seed"] + number, p, equal, torch.float32) for number in range(max(turns) + 1)]
    for model in models:
        for i, stage in enumerate(model):
            gpus.put(stage, torch.device("simgpu", i))
    generator = torch.Generator().manual_seed(case["seed"])
    facts["steps"] = []
    for number, turn in enumerate(turns):
        copy_state(models[turn], twins[turn])
        rows = n - m * number if n > 99 else n + number  # other sizes in the next call
        batch = torch.randn(rows, stages.WIDTH, generator=generator)
        targets = torch.randn(rows, stages.WIDTH, generator=generator)
        if case["loss"] == "cross_entropy":
            targets = torch.randint(stages.WIDTH, (rows,), generator=generator)
        made = list(models[turn])
        step = reference(twins[turn], batch, targets, loss_fn, m, parts=number == 0)
        step |= {
            "alone": [stages.alone(stage, i, -(-rows // m)) for i, stage in enumerate(made)],
            "last": f"GPU {p - 1}",
        }
        step |= {"samples": rows, "before": {}}
        facts["steps"].append(step)
        given = {"batch": batch.to("simgpu:0"), "targets": targets.to(f"simgpu:{p - 1}")}
        before = gpus.held()
        for name, parameter in models[turn].named_parameters() if case["gradients before"] == "some" else ():
            if parameter.requires_grad:
                step["before"][name] = torch.randn(parameter.shape, generator=generator) / 100
                parameter.grad = step["before"][name].to(parameter.device)
        with simgpu.races() as found, gpus.seen() as step["seen"]:
            loss = watch.call(function, stages=made, **given, loss_fn=loss_fn, micro_batches=m)
            races.go_on([loss, *(parameter.grad for parameter in models[turn].parameters())])
        step["races"] = races.plain(found)
        step["got"] = gpus.plain(loss)
        step["gradients"] = snapshot.gradients(models[turn])
        step["room"] = [0 if step["before"] else stages.bytes_of_gradients(stage) for stage in made]
        step["room"] += [0] * (case["gpus"] - p)
        with torch.no_grad():
            for parameter in models[turn].parameters():
                parameter.grad = None
                parameter.mul_(0.9)
        step["left"] = [now - then for now, then in zip(gpus.held(), before, strict=True)]
        if step["got"]["kind"] == "tensor":  # the loss is still there, and nothing that hangs on it
            step["left"][p - 1] -= gpus.rounded(loss.nbytes)
        loss = None
        given.clear()


# --- What is judged


def judge(case: Case, world: Sequence[Facts], function: str) -> Iterator[Broken]:
    for number, step in enumerate(world[0]["steps"]):
        broken = [*_host(step), *judge_numbers(step, case["micro-batches"])]
        if not broken:
            broken = [*_work(case, step), *_transfers(case, step)]
        if not broken:
            ordered = _gpipe(case, step) if function == GPIPE else _one_f_one_b(case, step)
            broken = [*ordered, *races.judge_races(step), *_left(step)]
        for one in broken:
            yield one.at(call=number)


def _host(step: Facts) -> Iterator[Broken]:
    if host := sum("host" in event[2] for event in step["seen"]["events"]):
        words = "a number goes to the host inside the step, or comes from there (.item(), float(…), .cpu()), and "
        words += "the host waits for it, and launches nothing meanwhile: return the loss as a tensor"
        yield Broken("work:0 host", words, f"{host} copies", 0)
    elif waits := step["seen"]["waits"]:
        words = (
            "synchronize makes the host wait until all is done, and then no two micro-batches are on their way at the "
        )
        words += "same time: the streams keep the order without it"
        yield Broken("work:0 waits", words, f"{waits} calls", 0)


def _work(case: Case, step: Facts) -> Iterator[Broken]:
    for gpu in range(case["gpus"]):
        ran = [step["seen"]["flops"][phase][gpu] for phase in ("forward", "backward")]
        alone = step["alone"][gpu]["flops"] if gpu < case["stages"] else [0.0, 0.0]
        right = [each * step["samples"] for each in alone]
        shown = ", ".join(
            f"{a / max(b, 1):.2g} × {w}" for a, b, w in zip(ran, right, ("forward", "backward"), strict=True)
        )
        figures = {"measured": shown, "expected": "1 × forward, 1 × backward"}
        if sum(ran) > 1.01 * sum(right):
            words = f"GPU {gpu} computes more than one forward and one backward for each micro-batch: is something "
            yield Broken("work:1 twice", words + "computed twice?", **figures)
        elif sum(ran) < 0.99 * sum(right):
            yield Broken("work:1 less", f"GPU {gpu} does not compute its stage for all micro-batches", **figures)


def _transfers(case: Case, step: Facts) -> Iterator[Broken]:
    p, m = case["stages"], case["micro-batches"]
    found = [event for event in step["seen"]["events"] if len(event[1]) == 2]
    expected = 2 * (p - 1) * m
    figures = {"measured": f"{len(found)} transfers", "expected": f"{expected} transfers"}
    if far := sorted({tuple(event[1]) for event in found if abs(event[1][0] - event[1][1]) > 1}):
        words = f"something is copied from GPU {far[0][0]} to GPU {far[0][1]}, which are no neighbours: activations go "
        yield Broken("copies:0 far", words + "from stage to stage, and their gradients the same way back", **figures)
    elif len(found) != expected:
        why = "one activation forward and one gradient back, over each border, for each micro-batch"
        used = len(found) // (2 * (p - 1)) if p > 1 and len(found) % (2 * (p - 1)) == 0 else m
        if used == 1:
            why = "that is the whole batch at once, no micro-batches"
        elif used < m:
            why = f"that is {used} micro-batches instead of {m}: chunk may give fewer pieces than asked for"
        yield Broken("copies:1 number", why, **figures)
    elif (nbytes := sum(event[6] for event in found)) != (right := 2 * (p - 1) * step["samples"] * 32 * 4):
        yield Broken("copies:2 bytes", "the transfers carry too much or too little", nbytes, right)


def order(step: Facts, gpu: int) -> str:
    """What a GPU did, one letter for each micro-batch's pass: "FFBFBB"."""
    per_pass = dict(zip("FB", step["alone"][gpu]["products"], strict=True))
    done, letters = {"F": 0, "B": 0}, ""
    for phase, gpus, _, _, _, flops, _ in step["seen"]["events"]:
        if gpus == [gpu] and flops:
            letter = phase[0].upper()
            letters += letter if done[letter] % per_pass[letter] == 0 else ""
            done[letter] += 1
    return letters


def bubble(case: Case, step: Facts) -> float:
    """The idle share of all GPUs, from the first matrix product to the last."""
    events = [event for event in step["seen"]["events"] if event[5]]
    total = case["stages"] * (max(event[4] for event in events) - min(event[3] for event in events))
    return 1 - sum(event[4] - event[3] for event in events) / total


def formula(case: Case) -> float:
    return (case["stages"] - 1) / (case["micro-batches"] + case["stages"] - 1)


def held(step: Facts, gpu: int) -> float:
    """How many micro-batches' activations a GPU held at its peak."""
    return (step["seen"]["peak"][gpu] - step["room"][gpu]) / step["alone"][gpu]["held"]


def _is_even(case: Case) -> bool:
    """Are all micro-batches of the same size and all stages of the same cost, so that the formulas hold?"""
    return case["stages cost"] == "the same" and case["samples"] % case["micro-batches"] == 0


def _gpipe(case: Case, step: Facts) -> Iterator[Broken]:
    m = case["micro-batches"]
    for gpu in range(case["stages"]):
        if (found := order(step, gpu)) != "F" * m + "B" * m:
            words = f"GPipe runs the forward of all micro-batches first, then all backwards; GPU {gpu} does not"
            yield Broken("work:2 order", words, found, "F" * m + "B" * m)
    why = "a copy waits for everything that was launched on its GPU before: launch it as soon as the stage has its "
    yield from _bubble(case, step, why + "result, before the stage's next micro-batch")


def _one_f_one_b(case: Case, step: Facts) -> Iterator[Broken]:
    p, m = case["stages"], case["micro-batches"]
    for gpu in range(p):
        wanted = "".join(item[0] for item in right_schedule(gpu, p, m))
        if (found := order(step, gpu)) != wanted:
            why = "a backward through the whole graph, for example, runs on all GPUs at once"
            if found == "F" * m + "B" * m:
                why = "all forwards first is GPipe"
            elif found == "FB" * m:
                why = "one micro-batch after the other keeps the other GPUs waiting"
            yield Broken("work:2 order", f"GPU {gpu} does not follow its schedule: {why}", found, wanted)
    alive = min(p, m)
    if _is_even(case) and held(step, 0) >= alive + ONE_MORE:
        words = "GPU 0 holds the activations of too many micro-batches: after its backward nothing may hold on to a "
        words += "micro-batch's input, output or loss"
        yield Broken(
            "memory:0 held", words, f"those of {held(step, 0):.1f}", f"those of {alive}, and less than one more"
        )
    why = "a plain .to() keeps both GPUs waiting for each other: send on streams of their own, as soon as there is "
    yield from _bubble(case, step, why + "something to send")


def _bubble(case: Case, step: Facts, why: str) -> Iterator[Broken]:
    p, m, found = case["stages"], case["micro-batches"], bubble(case, step)
    if _is_even(case) and found > formula(case) * (1 + BUBBLE_TOLERANCE) + 1e-6:
        if step["seen"]["pauses"]:
            why = "the host waits for a stream or an event (synchronize), and launches nothing meanwhile: let a stream "
            why += "wait, with wait_stream or wait_event"
        elif abs(found - (p - 1) / p) < 0.01 and m > 1:
            why = f"one GPU works at a time; {why}"
        right = f"(p − 1)/(m + p − 1) = {formula(case):.3f}"
        yield Broken("work:3 bubble", f"the bubble is too large: {why}", f"{found:.3f}", right)


def _left(step: Facts) -> Iterator[Broken]:
    if any(step["left"]):
        words = "something stays in a GPU's memory after the step, beside gradients and the loss: who keeps "
        words += "activations or losses? A loss that is returned with a graph that was retained holds all of them"
        yield Broken("memory:1 left", words, step["left"], [0] * len(step["left"]))


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    (case, world), *_ = played  # the one that is told of in the lab: 4 GPUs, 8 micro-batches
    step = world[0]["steps"][0]
    return {
        "steps": sum(len(world[0]["steps"]) for _, world in played),
        "transfers with 4 GPUs and 8 micro-batches": sum(len(event[1]) == 2 for event in step["seen"]["events"]),
        "bubble": f"{bubble(case, step):.3f} (formula {formula(case):.3f})",
        "activations on GPU 0 at its peak": f"of {held(step, 0):.1f} micro-batches",
    }


RULES = Rules(changes=("stages*.grad", "stages*.grad.*"))
MISTAKES = (
    ("state:*.length", "{}: a list that was given to you belongs to whoever called you"),
    ("state:*.device", "{}: stage i stays on GPU i"),
    ("state:*", "{}"),
    ("around:*", "{}"),
    *((f"{kind} *", "{}") for kind in ("work:0", "value:1", "value:2", "value:3", "work:1", "copies:0", "copies:1")),
    *((f"{kind} *", "{}") for kind in ("copies:2", "work:2", "work:4", "memory:0", "work:3", "memory:1")),
)


def _contract(exercise: str, function: str) -> Contract:
    return Contract(
        name=f"model_parallelism.{exercise}",
        rules={function: RULES},
        draw=draw,
        scene=functools.partial(play, function=function),
        judge=functools.partial(judge, function=function),
        mistakes=MISTAKES,
        figures=figures,
    )


GPIPE_CONTRACT, ONE_F_ONE_B_CONTRACT = _contract("gpipe", GPIPE), _contract("one_f_one_b", ONE_F_ONE_B)
