"""What the exercises of this lab share: gradients are means over the ranks, and what travels is what is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from checks.contracts import Amount, Broken, Case, Facts, compare

if TYPE_CHECKING:
    from torch import Tensor, nn

REFUSED = (
    "torch.nn.parallel.DistributedDataParallel.__init__",
    "torch.distributed._broadcast_coalesced",
    "torch.distributed.all_reduce_coalesced",
)
# A gradient may be changed in place, or be another tensor; all else of a parameter stays.
GRADIENTS = ("*.grad.value", "*.grad.is", "*.grad.memory", "*.grad.is_leaf")
NOT_TRAINED = "frozen parameters travel too, which never get a gradient"
WIDER = "gradients of two types travel in one tensor, so all of them in the wider type"
TWICE_OR_WIDER = "every gradient travels 2 times in a step, or once in float64 though it is float32"
TIED = "the tied weight travels twice: it has two names, but it is one tensor with one gradient"

MISTAKES: tuple[tuple[str, str], ...] = (
    ("wire:disagree", "{}. All ranks have to call the same, on tensors of the same size, in the same order"),
    ("wire:hidden", "{}"),
    ("wire:other *", "{}"),
    ("wire:peer *", "{}"),
    ("wire:unwaited *", "{}"),
    ("wire:changed *", "{}. In between, nobody may touch the tensor"),
    ("wire:none *", "{}"),
    ("value:extra", "{}. An optimizer moves a parameter whose gradient is zero: momentum, weight decay"),
)


def sizes(model: nn.Module) -> dict[str, Any]:
    """Of a model, before a learner's code has seen it: how much may travel, and what usual mistakes send."""
    from checks.contracts.scenery import trainable

    names = [(name, p) for name, p in model.named_parameters(remove_duplicate=False) if p.requires_grad]
    once = dict(trainable(model))
    state = [*model.parameters(), *model.buffers()]
    return {
        "trainable": [(name, p.nbytes, str(p.dtype).removeprefix("torch.")) for name, p in once.items()],
        "state": [tensor.nbytes for tensor in state],
        "tied": sum(p.nbytes for _, p in names) - sum(p.nbytes for p in once.values()),
        "frozen": sum(p.nbytes for p in model.parameters() if not p.requires_grad),
        "wider": sum(8 * p.numel() - p.nbytes for p in once.values()),
        "types": len({p.dtype for p in once.values()}),
    }


def models_in(played: Sequence[tuple[Case, Sequence[Facts]]], each: int = 1) -> str:
    """For the figures: how many models, on how many ranks."""
    ranks = ", ".join(str(count) for count in dict.fromkeys(case["ranks"] for case, _ in played))
    return f"{each * len(played)}, on {ranks} ranks"


def once(facts: Facts, model: int = 0) -> Amount:
    """Each gradient travels once, in as many calls as there are parameters, or fewer."""
    found = facts["sizes"][model]["trainable"]
    return Amount(len(found), sum(nbytes for _, nbytes, _ in found))


def surplus(facts: Facts, model: int = 0) -> dict[str, int]:
    """Bytes too many, by mistake."""
    found = facts["sizes"][model]
    all_of_it = sum(nbytes for _, nbytes, _ in found["trainable"])
    wider = {WIDER if found["types"] > 1 else TWICE_OR_WIDER: found["wider"]}
    return (
        {NOT_TRAINED: found["frozen"], TIED: found["tied"]}
        | wider
        | {f"every gradient travels {times} times in a step": (times - 1) * all_of_it for times in range(2, 6)}
    )


def by_model(amount: Callable[[Facts, int], Amount], number: int) -> Callable[[Case, int, Facts], dict[str, Amount]]:
    return lambda case, rank, facts: {"all_reduce": amount(facts, number)}


def judge_means(
    world: Sequence[Facts], step: int, call: int, more: Callable[[str, int], Mapping[str, Tensor]] | None = None
) -> Iterator[Broken]:
    """In a step, each gradient is the mean over the ranks of what each had by itself.

    Facts of the step: ``own`` and ``got``, gradients by name. No rank's own: there is none afterwards.

    Args:
        more: from a name and a rank, what other mistakes give.
    """
    import torch

    ranks = len(world)
    steps = [facts["steps"][step] for facts in world]
    names = dict.fromkeys(name for one in steps for name in one["own"])
    for rank, one in enumerate(steps):
        for name in names:
            shape = next(other["own"][name] for other in steps if name in other["own"])
            own = [other["own"].get(name, torch.zeros_like(shape)) for other in steps]
            users = sum(name in other["own"] for other in steps)
            mean = sum(term.double() for term in own) / ranks
            guesses: dict[str, Tensor] = dict(more(name, rank)) if more else {}
            if ranks > 1:
                guesses |= {
                    f"is the sum over the ranks: divide by the world size, {ranks}": mean * ranks,
                    f"is divided by the world size twice, as if there were {ranks**2} ranks": mean / ranks,
                    "is still this rank's own: the mean does not arrive in `.grad`": own[rank],
                    "is this rank's own, divided: the sum does not arrive": own[rank] / ranks,
                }
            if 0 < users < ranks:
                words = "is the mean over those ranks that used it: divide by the world size, the others count as zero"
                guesses = {words: mean * ranks / users} | guesses
            what, where = f"the gradient of `{name}`", {"rank": rank, "call": call}
            if users and name not in one["got"]:
                yield Broken("value:lost", f"{what} is missing: other ranks have used this parameter", **where)
                continue
            yield from compare("value:gradient", what, one["got"].get(name), own, 1 / ranks, guesses, **where)
        for name in sorted(set(one["got"]) - set(names)):
            words = (
                "there is a gradient though no rank has used this parameter, or it is frozen: leave its `.grad` None"
            )
            yield Broken("value:extra", f"`{name}`: {words}", rank=rank, call=call)


def judge_others(world: Sequence[Facts], step: int, call: int) -> Iterator[Broken]:
    """A step leaves the gradients of the model of the step before (``others``) as they were (``got``)."""
    import torch

    for rank, facts in enumerate(world):
        now, before = facts["steps"][step]["others"], facts["steps"][step - 1]["got"] if step else {}
        for name in before:
            if name not in now or not torch.equal(now[name], before[name]):
                words = f"the gradient of `{name}` of the model of the step before is changed: do they share memory?"
                yield Broken("value:others", words, rank=rank, call=call)
                return
