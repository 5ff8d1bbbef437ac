"""Exercise 6: ``train_uneven(model, optimizer, batches)`` on ranks that have different numbers of batches."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from checks.contracts import Amount, Broken, Case, Contract, Facts, Rules
from checks.plain import number

if TYPE_CHECKING:
    from torch import Tensor

COUNT_BYTES = 16  # what a step may say beside its gradients: two numbers
KINDS = ("all_reduce", "all_gather", "broadcast", "reduce", "reduce_scatter", "gather", "scatter")
SHOWN = [[4, 3, 2], [1], [2, 2]]  # what the figures are about
RATIO = 2.0**-21  # how exact a quotient of two integer tensors is: torch makes a float32 of it


def draw(rng: random.Random) -> list[Case]:
    some = [SHOWN, [[], [3, 5], [2]], [[], [], []]]
    for ranks in (3, 3, 2, 2, 1, rng.choice((4, 5))):
        some.append([[rng.randint(1, 6) for _ in range(rng.choice((0, 1, 2, 3, 4)))] for _ in range(ranks)])
    some[3][rng.randrange(3)] = []
    some.append([[rng.randint(150, 250), 1], [rng.randint(110, 200)]])  # more than a byte counts
    cases = []
    for sizes in some:
        how = {"type": rng.choice(("float64", "float64", "float32")), "lr": rng.choice((0.5, 0.125, 1.0))}
        how |= {"momentum": rng.choice((0.9, 0.5)), "weight decay": rng.choice((0.0, 0.01)), "sizes": sizes}
        how["gradients"] = len(cases) % 2 == 0
        shown = ", ".join(map(str, sizes))
        cases.append({"ranks": len(sizes), "samples of the batches": shown} | how | {"seed": rng.getrandbits(30)})
    return cases


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import torch.distributed as dist

    from checks.feeding_the_ranks.uneven_training import Training

    training = Training(case, dist.get_rank())
    parameters = list(training.model.parameters())
    facts |= {"parameters": len(parameters), "bytes": sum(parameter.nbytes for parameter in parameters)}
    facts |= {"drawn": training.drawn, "steps": training.steps, "begin": training.optimizer.state()}
    given = {"model": training.model, "optimizer": training.optimizer, "batches": training.stream()}
    returned = watch.call("train_uneven", **given)
    steps = number(returned, whole=True)
    facts["returned"] = type(returned).__name__ if steps is None else steps
    facts |= {"changed": training.changed(), "end": training.optimizer.state()}
    facts["calls"] = [call["bytes"] for call in watch.records[-1]["calls"]]


# --- judging ---------------------------------------------------------------------------------------------------


def _steps(case: Case) -> int:
    return max(len(sizes) for sizes in case["sizes"])


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    """The first thing that is not as it has to be; others may follow from it."""
    ended = all("returned" in facts for facts in world)
    broken = _reading(case, world) if ended else None
    steps = min(_steps(case), *(len(facts["steps"]) for facts in world), len(world[0]["steps"]))
    broken = broken or _mistake([found for step in range(steps) if (found := _gradient(world, step))])
    broken = broken or (_ends(case, world) if ended else None)
    if broken:
        yield broken


def _reading(case: Case, world: Sequence[Facts]) -> Broken | None:
    for rank, facts in enumerate(world):
        wanted = len(case["sizes"][rank])
        ahead = max((number - done for number, done in enumerate(facts["drawn"])), default=0)
        if len(facts["drawn"]) < wanted:
            words = "train_uneven stops before its batches are used up: the ones with more data go on, and the others "
            words += "take part"
            return Broken("value:stops", words, f"{len(facts['drawn'])} of {wanted} batches", rank=rank)
        if ahead > 1:
            words = (
                "train_uneven reads its batches before it takes its steps: a data set does not fit into memory. Ask "
            )
            words += "for one batch at a time"
            return Broken("value:ahead", words, f"{ahead} batches ahead", "at most 1", rank=rank)
        if facts["changed"]:
            return Broken(
                "value:batch", "train_uneven changes a batch that it was given: others may need it, too", rank=rank
            )
    return None


def _mistake(found: Sequence[tuple[Broken, list[str]]]) -> Broken | None:
    """The first step that is not right, with the mistake that explains all of them, if one does."""
    if not found:
        return None
    first, mistakes = found[0]
    whole = [words for words in mistakes if all(words in others for _, others in found)]
    words = next(iter(whole or mistakes), "")
    return replace(first, sentence=f"{first.sentence.partition(',')[0]}, {words}") if words else first


def _gradient(world: Sequence[Facts], step: int) -> tuple[Broken, list[str]] | None:
    """At a step of the optimizer, ``.grad`` is the mean over all samples of all ranks; and which mistakes it may be."""
    ranks, at = len(world), [facts["steps"][step] for facts in world]
    where = f"in step {step}"
    for rank, facts in enumerate(world):
        before = facts["steps"][step - 1]["after"] if step else facts["begin"]
        if at[rank]["before"] != before:
            words = "weights, momentum or the learning rate are changed past the optimizer: optimizer.step() does it"
            return Broken("value:past", f"{where}, {words}", rank=rank), []
    own = {rank: one["own"] for rank, one in enumerate(at) if one["own"] is not None}
    total = sum(len(rows) for rows in own.values())
    for rank, one in enumerate(at):
        if one["got"] is None:
            words = "has parameters without a gradient: a rank without data hands in zeros, and takes the step too"
            return Broken("value:none", f"{where} it {words}", rank=rank), []
        if _close(one["got"], own, total):
            continue
        guesses = _guesses(world, step, own, ranks).items()
        mistakes = [words for words, guess in guesses if _alike(one["got"].double(), guess)]
        words = "the gradient is not that of the mean loss over all samples of the step, as one process would have it"
        norms = (f"norm {float(vector.double().norm()):.9g}" for vector in (one["got"], _mean(own, total)))
        return Broken("value:gradient", f"{where}, {words}", *norms, rank=rank), mistakes
    if len({one["after"] for one in at}) > 1:
        rank = next(rank for rank, one in enumerate(at) if one["after"] != at[0]["after"])
        words = f"after step {step}, it has other weights or momentum than rank 0"
        return Broken("value:weights", words, rank=rank), []
    return None


def _alike(one: Tensor, other: Tensor) -> bool:
    return float((one - other).abs().max()) <= 1e-5 * float(other.abs().max())


def _mean(own: dict[int, Tensor], total: int) -> Tensor:
    return sum(rows.double().sum(0) for rows in own.values()) / total


def _close(got: Tensor, own: dict[int, Tensor], total: int) -> bool:
    """Whether all is computed in the model's type; only the weights of the ranks may be float32's quotients."""
    import torch

    off = got.double() - _mean(own, total)
    size = max(float(rows.double().abs().max()) for rows in own.values())
    bound = 64 * torch.finfo(got.dtype).eps * size
    if float(off.abs().max()) <= bound:
        return True
    parts = torch.stack([rows.double().sum(0) / total for rows in own.values()], dim=1)
    weights = torch.linalg.lstsq(parts, off[:, None], driver="gelsd").solution
    rest = off - (parts @ weights)[:, 0]
    return float(weights.abs().max()) <= RATIO and float(rest.abs().max()) <= bound


def _guesses(world: Sequence[Facts], step: int, own: dict[int, Tensor], ranks: int) -> dict[str, Tensor]:
    """What likely mistakes give."""
    sums = {rank: rows.double().sum(0) for rank, rows in own.items()}
    means = sum(sums[rank] / len(rows) for rank, rows in own.items())
    total, before = sum(len(rows) for rows in own.values()), [facts["steps"][:step] for facts in world]
    so_far = total + sum(len(one["own"]) for steps in before for one in steps if one["own"] is not None)
    last = [[one["own"] for one in facts["steps"][: step + 1] if one["own"] is not None] for facts in world]
    stale = [rows[-1].double() for rows in last if rows]
    guesses = {
        "the ranks' means are added up and divided by the world size, so a rank without data pulls the step towards "
        "zero, and a small batch weighs as much as a large one": means / ranks,
        "each rank's mean weighs the same, so a sample in a small batch weighs more than one in a large one: weigh by "
        "the number of samples": means / len(own),
        "the gradients are added up and not divided by the number of samples": sum(sums.values(), means * 0),
        "each rank divides by its own number of samples before the gradients are added up, and nobody divides by how "
        "many means there are": means,
    }
    if so_far > total:
        guesses["the divisor is the number of all samples so far, and not that of this step"] = (
            sum(sums.values()) / so_far
        )
    if len(stale) > len(own):
        words = "a rank without data still hands in the gradient of its last batch: zeros are what it has"
        guesses[words] = sum(rows.sum(0) for rows in stale) / sum(len(rows) for rows in stale)
    if step and before[0][-1]["got"] is not None:
        old = before[0][-1]["got"].double()
        words = "the gradients of the last step are still there: clear them before backward(), also without data"
        guesses[words] = sum(sums.values()) / total + ranks * old
    return guesses


def _ends(case: Case, world: Sequence[Facts]) -> Broken | None:
    steps, most = [len(facts["steps"]) for facts in world], _steps(case)
    figures = f"steps of the ranks: {steps}", f"{most} on each"
    if max(steps) > most:
        words = "there is a step without any data, and the optimizer's momentum moves the weights on"
        return Broken("value:steps", words, *figures)
    if steps != [most] * len(steps):
        words = "a rank without data takes the step too: its weights must stay those of the others"
        if len(set(steps)) == 1:
            words = "all ranks stop too early: the last step is the last one with any data on any rank"
        return Broken("value:steps", words, *figures)
    for rank, facts in enumerate(world):
        if facts["end"] != (facts["steps"][-1]["after"] if steps[rank] else facts["begin"]):
            return Broken(
                "value:past", "weights, momentum or the learning rate are changed after the last step", rank=rank
            )
        if facts["returned"] != most:
            words = "train_uneven returns the number of steps, on every rank"
            return Broken("value:returned", words, facts["returned"], most, rank=rank)
        calls, most_bytes = _talk(case, facts)
        if len(world) > 1 and len(facts["calls"]) > calls:
            words = (
                "more collectives than needed: beside the gradients one a step, and one at the end, tell who has data"
            )
            return Broken("value:calls", words, f"{len(facts['calls'])} collectives", f"at most {calls}", rank=rank)
        if sum(facts["calls"]) > most_bytes:
            words = "more bytes than needed: the gradients, and two numbers a step"
            figures = f"{sum(facts['calls']):,} bytes", f"at most {most_bytes:,}"
            return Broken("value:bytes", words, *figures, rank=rank)
    return None


def _talk(case: Case, facts: Facts) -> tuple[int, int]:
    """The most collectives and the most bytes that a rank may hand in: the gradients, and two numbers a step."""
    steps = _steps(case)
    return steps * (facts["parameters"] + 1) + 1, (steps + 1) * (facts["bytes"] + COUNT_BYTES)


def _wire(case: Case, rank: int, facts: Facts) -> dict[str, Amount]:
    calls, nbytes = _talk(case, facts)
    return {name: Amount(calls, nbytes, least=0) for name in KINDS}


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    case, world = played[0]
    return {
        "batches of the ranks": ", ".join(str(len(sizes)) for sizes in case["sizes"]),
        "steps": f"{_steps(case)} on each",
        "collectives": f"{len(world[0]['calls'])} (at most {_talk(case, world[0])[0]})",
        "gradients": f"those of one process, in {len(played)} trainings",
    }


CONTRACT = Contract(
    name="feeding_the_ranks.uneven",
    rules={
        "train_uneven": Rules(
            changes=("*.value", "*.grad", "*.grad.*"), keeps=("model.buffer.value",), wire=_wire, same_calls=False
        )
    },
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        (
            "wire:disagree",
            "{}. A rank without data still takes part in the same, with zeros, as long as anybody has data",
        ),
        ("wire:unwaited *", "{}"),
        ("value:calls", "{}"),
        ("value:bytes", "{}"),
        ("value:*", "{}"),
        ("wire:more *", "more is sent than needed: the gradients, and two numbers a step. {}"),
        ("wire:pieces *", "more collectives than needed. {}"),
    ),
    refused=("torch.nn.parallel.DistributedDataParallel.__init__",),
    figures=figures,
)
