"""Loaders of different length: what each rank does with its batches, and what one process would have done."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from utils.algorithms.recorder import record_collectives
from utils.checks.compare import how_far
from utils.checks.verdicts import Wrong

if TYPE_CHECKING:
    import torch
    from torch import nn

Facts = dict[str, Any]  # what one rank did in one case

FEATURES, CLASSES = 3, 4
LR, MOMENTUM = 0.5, 0.9
COUNT_BYTES = 16  # what a step may say beside its gradients: two numbers
CLOSE = {"relative": 1e-5, "absolute": 1e-7}


@dataclass(frozen=True)
class Uneven:
    """Sizes of the batches of each rank. Its repr is short, because sentences show it."""

    sizes: tuple[tuple[int, ...], ...]

    def __repr__(self) -> str:
        return "batches of " + ", ".join(f"{list(sizes)}" for sizes in self.sizes) + " samples on the ranks"

    @property
    def steps(self) -> int:
        return max(len(sizes) for sizes in self.sizes)

    def batch(self, rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs [samples, features] and classes [samples]; each rank's look different."""
        import torch

        generator = torch.Generator().manual_seed(1000 * rank + step)
        size = self.sizes[rank][step]
        x = torch.randn(size, FEATURES, generator=generator, dtype=torch.float64) + rank
        return x, torch.randint(CLASSES, (size,), generator=generator)


def make_model() -> nn.Module:
    """The same weights everywhere: four parameters, float64."""
    import torch

    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 5), torch.nn.Tanh(), torch.nn.Linear(5, CLASSES)).double()


class Momentum:
    """What ``torch.optim.SGD(…, momentum=0.9)`` does. The real one imports torch's compiler, which takes seconds."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = list(model.parameters())
        self.param_groups = [{"params": self.parameters, "lr": LR}]
        self.velocities: dict[int, torch.Tensor] = {}
        self.steps = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        import torch

        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad = None if set_to_none else torch.zeros_like(parameter.grad)

    def step(self) -> None:
        import torch

        self.steps += 1
        with torch.no_grad():
            for index, parameter in enumerate(self.parameters):
                if parameter.grad is None:
                    continue
                before = self.velocities.get(index, 0)
                self.velocities[index] = MOMENTUM * before + parameter.grad
                parameter -= LR * self.velocities[index]


def _weights(model: nn.Module) -> torch.Tensor:
    import torch

    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


# --- what the ranks do -----------------------------------------------------------------------------------------


class _Noted(list):
    """A list of collectives that also stands in a file, for the case that the rank never comes back."""

    def __init__(self, note: Path) -> None:
        super().__init__()
        self.note = note

    def append(self, call: Any) -> None:
        super().append(call)
        with self.note.open("a", encoding="utf-8") as file:
            file.write(f"{call.name} of {call.bytes} bytes\n")


def uneven(train: Any, cases: list[Uneven], notes: str) -> list[Facts]:
    """Let this rank train on its batches, case after case."""
    import torch.distributed as dist

    rank, found = dist.get_rank(), []
    for number, case in enumerate(cases):
        dist.barrier()  # no rank is ahead by a case
        model = make_model()
        optimizer = Momentum(model)
        drawn: list[int] = []  # steps done when each batch was asked for
        with record_collectives() as record:
            record.calls = _Noted(Path(notes, f"{number}.{rank}.calls"))
            returned = train(model, optimizer, _stream(case, rank, drawn, optimizer))
        Path(notes, f"{number}.{rank}.ended").write_text(f"{optimizer.steps}", encoding="utf-8")
        found.append(
            {
                "returned": returned,
                "steps": optimizer.steps,
                "drawn": drawn,
                "weights": _weights(model),
                "calls": record.plain(),
            }
        )
    return found


def _stream(case: Uneven, rank: int, drawn: list[int], optimizer: Momentum) -> Iterator[tuple[Any, Any]]:
    for step in range(len(case.sizes[rank])):
        drawn.append(optimizer.steps)
        yield case.batch(rank, step)


def what_they_waited_for(notes: str, cases: list[Uneven]) -> str:
    """A sentence about ranks that never came back, from what they noted; "" if the notes tell nothing."""
    for number, case in reversed(list(enumerate(cases))):
        ranks = range(len(case.sizes))
        ended = [rank for rank in ranks if Path(notes, f"{number}.{rank}.ended").exists()]
        calls = {rank: _lines(Path(notes, f"{number}.{rank}.calls")) for rank in ranks}
        if ended and len(ended) < len(ranks):
            rank, waiting = ended[0], next(rank for rank in ranks if rank not in ended)
            batches = len(case.sizes[rank])
            what = calls[waiting][-1] if calls[waiting] else "a collective"
            return (
                f"rank {rank} leaves after its {batches} batch{'es' if batches != 1 else ''}, and rank {waiting} waits "
                f"for it in an {what}: a rank without data still takes part, with zeros"
            )
        for place in range(max(map(len, calls.values()))):
            said = {rank: texts[place] for rank, texts in calls.items() if place < len(texts)}
            if len(set(said.values())) > 1:
                told = ", ".join(f"on rank {rank} {text}" for rank, text in said.items())
                return f"the ranks do not take part in the same collective; number {place + 1} is {told}"
        if ended or any(calls.values()):
            break  # this was the last case that began
    return ""


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


# --- what one process would have done --------------------------------------------------------------------------

WAYS = {
    "world size": "the ranks' means are added up and divided by the world size, so a rank without data pulls the step "
    "towards zero, and a small batch weighs as much as a large one",
    "ranks with data": "each rank's mean weighs the same, so a sample in a small batch weighs more than one in a large "
    "one: weigh by the number of samples",
    "sum": "the gradients are added up and not divided by the number of samples",
    "own number": "each rank divides by its own number of samples before the gradients are added up, and nobody "
    "divides by how many means there are",
    "old gradient": "a rank without data still hands in the gradient of its last batch: zeros are what it has",
    "all samples of all steps": "the divisor is the number of all samples so far, and not that of this step",
}


def reference(case: Uneven, way: str = "right") -> torch.Tensor:
    """The weights afterwards if one process takes each step with the batches of all ranks, or a known mistake."""
    import torch

    model = make_model()
    optimizer = Momentum(model)
    last: dict[int, tuple[list[torch.Tensor], int]] = {}
    seen = 0
    for step in range(case.steps):
        now = {rank: _summed(model, *case.batch(rank, step)) for rank, own in enumerate(case.sizes) if step < len(own)}
        last |= now
        parts = list((last if way == "old gradient" else now).values())
        samples = sum(count for _, count in parts)
        seen += samples
        for index, parameter in enumerate(model.parameters()):
            total = sum((summed[index] for summed, _ in parts), torch.zeros_like(parameter))
            means = sum((summed[index] / count for summed, count in parts), torch.zeros_like(parameter))
            parameter.grad = {
                "world size": means / len(case.sizes),
                "ranks with data": means / len(parts),
                "own number": means,
                "sum": total,
                "all samples of all steps": total / seen,
            }.get(way, total / samples)
        optimizer.step()
    return _weights(model)


def _summed(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[list[torch.Tensor], int]:
    """Gradients of the sum of the losses, and the number of samples."""
    import torch

    loss = torch.nn.functional.cross_entropy(model(x), y, reduction="sum")
    return list(torch.autograd.grad(loss, list(model.parameters()))), len(y)


# --- judging ---------------------------------------------------------------------------------------------------


def judge_uneven(case: Uneven, per_rank: list[Facts]) -> None:
    """Look at one case; raise Wrong with the likely mistake."""
    where = f"See {case!r}"
    for rank, facts in enumerate(per_rank):
        wanted = len(case.sizes[rank])
        if len(facts["drawn"]) < wanted:
            raise Wrong(
                f"rank {rank} stops before its batches are used up: the ones with more data go on, with the others "
                f"taking part. {where}",
                measured=f"{len(facts['drawn'])} of {wanted} batches",
            )
        ahead = [number - done for number, done in enumerate(facts["drawn"])]
        if max(ahead, default=0) > 1:
            raise Wrong(
                f"rank {rank} reads its batches before it takes its steps: a data set does not fit into memory. Ask "
                f"for one batch at a time. {where}",
                measured=f"{max(ahead)} batches ahead",
                expected="at most 1",
            )
    _judge_steps(case, per_rank, where)
    if how_far(per_rank[0]["weights"], (right := reference(case)), **CLOSE):
        for way, sentence in WAYS.items():
            if how_far(per_rank[0]["weights"], reference(case, way), **CLOSE) is None:
                raise Wrong(f"{sentence}. {where}")
        raise Wrong(
            "the weights are not those of one process that takes each step with the batches of all ranks: the gradient "
            f"is that of the mean loss over all samples of the step. {where}",
            measured=f"off by up to {(per_rank[0]['weights'] - right).abs().max().item():.2g}",
        )
    for facts in per_rank:
        _judge_talk(case, facts, where)


def _judge_steps(case: Uneven, per_rank: list[Facts], where: str) -> None:
    steps = [facts["steps"] for facts in per_rank]
    if steps != [case.steps] * len(steps):
        if max(steps) > case.steps:
            why = "there is a step without any data, and the optimizer's momentum moves the weights on"
        else:
            why = "a rank without data takes the step too: its weights must stay those of the others"
        raise Wrong(f"{why}. {where}", measured=f"steps of the ranks: {steps}", expected=f"{case.steps} on each")
    for rank, facts in enumerate(per_rank):
        if distance := how_far(facts["weights"], per_rank[0]["weights"], **CLOSE):
            raise Wrong(f"rank {rank} ends with other weights than rank 0: {distance}. {where}.")
        if type(facts["returned"]) is not int or facts["returned"] != case.steps:
            raise Wrong(
                f"train_uneven returns the number of steps, on every rank. {where}",
                measured=facts["returned"],
                expected=case.steps,
            )


def most_talk(case: Uneven) -> tuple[int, int]:
    """The most collectives and the most bytes that a rank may hand in: the gradients, and two numbers a step."""
    parameters = list(make_model().parameters())
    gradients = sum(parameter.nbytes for parameter in parameters)
    return case.steps * (len(parameters) + 1) + 1, (case.steps + 1) * (gradients + COUNT_BYTES)


def _judge_talk(case: Uneven, facts: Facts, where: str) -> None:
    calls, most_bytes = most_talk(case)
    handed_in = sum(call["bytes"] for call in facts["calls"])
    if len(case.sizes) > 1 and len(facts["calls"]) > calls:
        raise Wrong(
            f"more collectives than needed: one a step, and one at the end, tell who still has data. {where}",
            measured=f"{len(facts['calls'])} collectives",
            expected=f"at most {calls}",
        )
    if handed_in > most_bytes:
        raise Wrong(
            f"more bytes than needed: the gradients, and two numbers a step. {where}",
            measured=f"{handed_in} bytes",
            expected=f"at most {most_bytes}",
        )
