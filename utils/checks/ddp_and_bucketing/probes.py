"""What the checks of this lab run inside ranks: trainings of small models, whose collectives go over ``wire``.

After each step all ranks show each other what they saw, and all of them judge it. So all of them stop with the same
sentence, and no step follows one that is not right.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from utils.checks.ddp_and_bucketing import bucket_plans, gradients, judges
from utils.checks.ddp_and_bucketing.loop import Loop, Training, make, where_in
from utils.checks.ddp_and_bucketing.wire import Alone, Wire
from utils.checks.verdicts import Wrong

if TYPE_CHECKING:
    from torch import Tensor, nn

Facts = dict[str, Any]
STEPS = 3
SAME_ORDER = "All ranks have to call the same collectives, on tensors of the same size, in the same order"


def together(probe: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """A probe whose verdict all ranks reach at once: each of them returns it.

    (If they raised it, the first one would end the others, and the sentence would seem to be about this one rank.)

    Returns:
        A probe that gives ``figures``, or ``wrong``: the record of a ``Wrong``.
    """

    @functools.wraps(probe)
    def judged(*arguments: Any) -> dict[str, Any]:
        try:
            return {"figures": probe(*arguments)}
        except Alone:
            raise
        except Wrong as wrong:
            return {"wrong": wrong.record}

    return judged


# --- exercise 1 ------------------------------------------------------------------------------------------------


@together
def averages(broadcast_state: Any, average_gradients: Any, trainings: tuple[Training, ...]) -> dict[str, int]:
    """Ranks that are seeded differently agree on a model, then train it."""
    import torch
    import torch.distributed as dist

    wire = Wire(SAME_ORDER)
    figures: dict[str, int] = {}
    for training in trainings:
        model = make(training, seed=100 + dist.get_rank())
        buffers = [name for name, _ in model.named_buffers()]
        before = _state(model)
        with wire.listening():
            with torch.enable_grad():
                broadcast_state(model)
            facts = wire.gather({**wire.end_of_step(), "before": before, "state": _state(model)})
        where = where_in(training, "the broadcast at the start")
        loop = Loop(wire, training, model)
        judges.judge_broadcast(loop.weights, buffers, facts, where)
        figures["broadcast"] = _sent(facts[0], "broadcast")
        for step in range(STEPS):
            loop.zero_grad(step)
            loop.backward(step)
            loop.reference_backward(step)
            with wire.listening():
                average_gradients(model)
                facts = loop.facts()
            where = where_in(training, f"step {step + 1}")
            judges.judge_bytes(loop.weights, facts, where)
            judges.judge_waits(facts, where)
            gradients.judge_gradients(facts, where)
            loop.step()
        loop.judge_end("the end")
        figures["all_reduce"] = _sent(facts[0], "all_reduce")
    return figures


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {name: t.detach().clone() for name, t in (*model.named_parameters(), *model.named_buffers())}


def _sent(facts: Facts, name: str) -> int:
    return sum(call["bytes"] for call in judges.calls_of(facts, name))


# --- exercises 2 and 3 -------------------------------------------------------------------------------------------


@together
def overlapped(answer: Any, trainings: tuple[Training, ...]) -> dict[str, Any]:
    """Train with a class that is given the model, and has ``finish()``; buckets if the training has a cap."""
    advice = SAME_ORDER
    if any(training.cap for training in trainings):
        advice = "Gradients may become ready in another order on another rank: launch bucket 0 first, then bucket 1, …"
    wire, launched = Wire(advice), {}
    for training in trainings:
        loop = Loop(wire, training, make(training, seed=7))
        loop.note_gradients()
        ddp = _construct(wire, answer, loop.model, *([training.cap] if training.cap else []))
        for step in range(STEPS):
            loop.zero_grad(step)
            loop.reference_backward(step)
            with wire.listening():
                loop.backward(step)
                with loop.phase("finish()"):
                    ddp.finish()
                facts = loop.facts()
            where = where_in(training, f"step {step + 1}")
            _judge_launches(loop, facts, where)
            gradients.judge_gradients(facts, where)
            loop.step()
        loop.judge_end("the end")
        calls = judges.calls_of(facts[0])
        launched[repr(training)] = [len(calls), calls[0]["ready"], len(facts[0]["ready"])]
    return launched


def _construct(wire: Wire, answer: Any, model: nn.Module, *arguments: Any) -> Any:
    """The learner's object. What its constructor says to other ranks is not judged."""
    with wire.listening():
        ddp = answer(model, *arguments)
        wire.end_of_step()
    return ddp


def _judge_launches(loop: Loop, facts: list[Facts], where: str) -> None:
    cap = loop.training.cap
    if not cap:
        judges.judge_one_each(loop.weights, facts, where)
        judges.judge_moments(loop.weights, facts, where)
        return
    judges.judge_kinds(facts, "all_reduce")
    buckets = bucket_plans.buckets_of(loop.weights, cap)
    bucket_plans.judge_buckets(loop.weights, cap, facts, where)
    judges.judge_overlap(facts, [bucket_plans.due(buckets, one["ready"])[0] for one in facts], where)
    bucket_plans.judge_due(loop.weights, cap, facts, where)
    judges.judge_waits(facts, where)


# --- exercise 4 ------------------------------------------------------------------------------------------------


class Interruption(Exception):
    """What the check raises inside a ``no_sync()`` block."""


@together
def accumulating(answer: Any, trainings: tuple[Training, ...]) -> dict[str, int]:
    """Train with micro-batches: only the last one of a step is synchronised."""
    wire, silent = Wire(SAME_ORDER), 0
    for training in trainings:
        loop = Loop(wire, training, make(training, seed=8))
        loop.note_gradients()
        ddp = _construct(wire, answer, loop.model)
        for step, (what, parts, block) in enumerate(BLOCKS):
            loop.zero_grad(step)
            loop.reference_backward(step, parts)
            with wire.listening():
                block(loop, ddp, step, where_in(training, f"a step with {what}"))
                micro_batch(loop, ddp, step, parts - 1, parts)
                facts = loop.facts()
            where = where_in(training, f"a step with {what}")
            if parts == 1 and step and not any(one["calls"] for one in facts):
                raise Wrong(
                    f"nothing is synchronised any more after {what}: no_sync() has to put back what was. {where}."
                )
            judges.judge_bytes(loop.weights, facts, where)
            judges.judge_waits(facts, where)
            gradients.judge_gradients(facts, where, parts)
            loop.step()
        loop.judge_end("the end")
        silent += loop.silent
    return {"silent": silent, "steps": len(BLOCKS) * len(trainings), "bytes": _sent(facts[0], "all_reduce")}


def micro_batch(loop: Loop, ddp: Any, step: int, micro: int, parts: int) -> None:
    loop.backward(step, micro, parts)
    with loop.phase("finish()"):
        ddp.finish()


def quietly(loop: Loop, ddp: Any, step: int, micro: int, parts: int, where: str) -> None:
    """A micro-batch that must not communicate."""
    micro_batch(loop, ddp, step, micro, parts)
    judges.judge_silence(loop.facts(), where)
    loop.silent += 1


def _nothing(loop: Loop, ddp: Any, step: int, where: str) -> None:
    pass


def _one_block(loop: Loop, ddp: Any, step: int, where: str) -> None:
    with ddp.no_sync():
        for micro in range(3):
            quietly(loop, ddp, step, micro, 4, where)


def _own_block(loop: Loop, ddp: Any, step: int, where: str) -> None:
    with ddp.no_sync():
        quietly(loop, ddp, step, 0, 2, where)


def _nested(loop: Loop, ddp: Any, step: int, where: str) -> None:
    with ddp.no_sync():
        with ddp.no_sync():
            quietly(loop, ddp, step, 0, 4, where)
        for micro in (1, 2):
            quietly(loop, ddp, step, micro, 4, f"The inner of two blocks has ended, the outer one has not. {where}")


def _interrupted(loop: Loop, ddp: Any, step: int, where: str) -> None:
    raised = None
    try:
        with ddp.no_sync():
            quietly(loop, ddp, step, 0, 1, where)
            raise Interruption("a batch cannot be read")
    except Interruption as error:
        raised = error
    if raised is None:
        raise Wrong(f"an exception inside the no_sync() block does not come out: use try … finally. {where}.")
    loop.zero_grad(step)
    loop.reference_backward(step)


def _not_entered(loop: Loop, ddp: Any, step: int, where: str) -> None:
    ddp.no_sync()  # no ``with``: nothing has begun


BLOCKS: tuple[tuple[str, int, Callable[..., None]], ...] = (
    ("no no_sync() block", 1, _nothing),
    ("4 micro-batches, 3 of them in one no_sync() block", 4, _one_block),
    ("an exception inside a no_sync() block", 1, _interrupted),
    ("one block inside another", 4, _nested),
    ("a call of no_sync() without `with`", 1, _not_entered),
    ("2 micro-batches, the first in a no_sync() block", 2, _own_block),
)


# --- exercise 5 ------------------------------------------------------------------------------------------------

# The expert that each rank uses, by rank; the rest of the ranks takes them from the start again.
CHOICES: tuple[tuple[int | None, ...], ...] = (
    (0, 0, None),
    (0, 1, 2),
    (2, 2, 2),
    (None, 1, 1),
    (None, None, None),
)


@together
def unused(answer: Any, trainings: tuple[Training, ...]) -> dict[str, int]:
    """Train a model whose ranks use different parts of it."""
    advice = (
        "Some ranks have no gradient for a parameter that others have used: first learn, in one all_reduce of flags, "
        "which ones anybody has used"
    )
    wire, most = Wire(advice), 0
    for training in trainings:
        loop = Loop(wire, training, make(training, seed=9))
        for step, choice in enumerate(CHOICES):
            choice = tuple(choice[rank % len(choice)] for rank in range(loop.ranks))
            loop.optimizer.zero_grad()
            loop.reference_optimizer.zero_grad()
            loop.model.expert = choice[loop.rank]
            loop.backward(step)
            loop.reference_backward(step, experts=choice)
            with wire.listening():
                answer(loop.model)
                facts = loop.facts()
            used = ", ".join(f"rank {rank} {'none' if one is None else one}" for rank, one in enumerate(choice))
            judges.judge_unused(loop.weights, facts, f"{where_in(training, 'a step')}; experts used: {used}")
            loop.step()
            most = max(most, len(facts[0]["calls"]))
        loop.judge_end("the end")
    return {"steps": len(CHOICES), "most": most, "trainable": sum(weight.trainable for weight in loop.weights)}
