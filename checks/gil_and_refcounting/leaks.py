"""What exercises 3 to 5 have in common: nothing that a step leaves behind may pile up."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from checks.contracts import Broken, Case, Facts, compare

if TYPE_CHECKING:
    from torch import Tensor

PRELOAD = ("checks.contracts.gpus", "checks.gil_and_refcounting.training_loops")
ROUNDINGS = 400  # one after the other, in the steps of these loops
ONE_NUMBER = 512  # bytes: the smallest piece that a GPU's allocator hands out
ON_THE_HOST = 600  # bytes that a step may leave in Python's memory: a pair, a number, a short text
NOISE = 60_000  # bytes by which two runs of the same loop differ there; 26 steps' outputs are five times as much
TRAINED = ("model.*.value", "model.*.grad", "model.*.grad.*", "optimizer.state*", "optimizer.param_groups*.value",
           "optimizer.param_groups*.grad", "optimizer.param_groups*.grad.*")  # fmt: skip


def cases(rng: random.Random) -> list[Case]:
    """The lab's 26 steps with momentum; then others, and a single step."""
    found = []
    for steps, optimizer, kind in (
        (26, "momentum", "float32"),
        (rng.randint(7, 19), "", "float64"),
        (1, "SGD", "float64"),
    ):
        how = {"steps": steps, "optimizer": optimizer or rng.choice(("SGD", "Adam", "momentum")), "type": kind}
        how |= {"activation": rng.choice(("tanh", "sigmoid", "silu")), "gradients": kind == "float64"}
        found.append({"ranks": 1, "gpus": 1} | how | {"seed": rng.getrandbits(30)})
    return found


def judge_growth(facts: Facts, settled: int, what_stays: str) -> Iterator[Broken]:
    """What is alive, and need not be, is not more after a later step than after the first ones."""
    mine, wanted = facts["alive"], facts["may be alive"]
    if len(mine["GPU"]) != len(wanted["GPU"]):
        measured, expected = (f"{len(one['GPU']) - 1} steps" for one in (mine, wanted))
        yield Broken("value:0 steps", "each batch is trained on once, also after a broken one", measured, expected)
        return
    if facts["collector"]:
        words = "calls gc.collect(), which looks at every object there is: let nothing hold what is not needed"
        yield Broken("value:3 collector", words, f"{facts['collector']} calls", 0)
    more = {kind: [here - there for here, there in zip(mine[kind], wanted[kind], strict=True)] for kind in mine}
    piled = {kind: max(found[settled:-1], default=0) - found[settled] if len(found) > settled + 1 else 0
             for kind, found in more.items()}  # fmt: skip
    steps = len(more["GPU"]) - 2 - settled
    if piled["GPU"] > 0:
        words, rises = what_stays, [b - a for a, b in itertools.pairwise(more["GPU"][settled:-1])]
        if max(rises) <= ONE_NUMBER:
            words = f"a tensor with one number stays for each step and takes {ONE_NUMBER} bytes: keep plain numbers"
        yield Broken("value:1 GPU", words, f"{piled['GPU']:,} bytes more in {steps} steps", "0 bytes")
    elif more["GPU"][-1] > 0:
        # (Told after what is wrong with the training, which may be why: gradients and an optimizer's state stay, too.)
        words = f"{what_stays}: some of it is still there when the function has returned"
        yield Broken("value:5 GPU", words, f"{more['GPU'][-1]:,} bytes", "0 bytes")
    if piled["tensors"] > 0:
        words = "the GPU's memory does not grow, but the host's does: tensors pile up"
        yield Broken("value:2 host", words, f"{piled['tensors']} tensors more in {steps} steps", "0")
    elif piled["host"] > ON_THE_HOST * steps + NOISE:
        words = "no tensor stays, but numbers pile up in the host's memory: arrays, lists or texts"
        yield Broken("value:2 host", words, f"{piled['host']:,} bytes in {steps} steps", "next to nothing")
    elif facts["kept"] > 0:
        words = (
            "numbers or arrays stay in the host's memory when the function has returned: what outside it holds them?"
        )
        yield Broken("value:5 kept", words, f"{facts['kept']:,} bytes", "0 bytes")


def judge_training(facts: Facts, steps: int, kind: str) -> Iterator[Broken]:
    """The model was trained as the loop without a leak trains it."""
    for part, words in (
        ("parameters", "the model is not trained as before: the leak must go, but the training needs its graph until "
         "backward"),
        ("gradients", "the gradients afterwards are not those of the last step: were they cleared, or is there a "
         "second backward?"),
        ("optimizer", "the optimizer keeps other numbers afterwards, for its next step, than those of this training"),
    ):  # fmt: skip
        got, right = facts["after"][part], facts["right"][part]
        if set(got) != set(right) or any(different(got[name], one, kind) for name, one in right.items()):
            yield Broken(f"value:4 {part}", words)
            return


def different(got: Any, right: Tensor, kind: str) -> bool:
    return any(compare("value:", "", got, [right], coarsest=kind, steps=ROUNDINGS))


def compare_numbers(
    clause: str, what: str, got: Any, right: Any, kind: str, guesses: Mapping[str, Any]
) -> Iterator[Broken]:
    """``compare`` for plain numbers, or lists of them."""
    import torch

    one, other = (torch.tensor(value, dtype=torch.float64) for value in (got, right))
    words = {name: torch.tensor(value, dtype=torch.float64) for name, value in guesses.items()}
    for broken in compare(clause, what, one, [other], guesses=words, coarsest=kind, steps=ROUNDINGS):
        yield replace(broken, measured=_digits(got), expected=_digits(right))


def _digits(numbers: Any) -> Any:
    return [float(f"{one:.8g}") for one in numbers[:4]] if isinstance(numbers, list) else f"{numbers:.10g}"


def figures(played: Any) -> dict[str, Any]:
    steps = ", ".join(str(case["steps"]) for case, _ in played)
    return {"steps": steps, "piled up on the GPU": "0 bytes", "tensors piled up": 0}
