"""Exercise 1: ``account(model, inputs, loss, state)``: a model on the CPU, and the ledger of a GPU with its twin."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from checks import plain
from checks.contracts import Broken, Case, Contract, Facts, Rules

PRELOAD = ("checks.memory_and_precision.networks", "torch.distributed.tensor")
KINDS = ("parameters", "gradients", "optimizer state", "activations")


def draw(rng: random.Random) -> list[Case]:
    cases: list[Case] = []
    for types, loss, state in (
        ("float32", "cross-entropy", 2),
        ("float64", "root mean square", 1),
        ("bfloat16", "mean square", 2),
        ("float32", rng.choice(("root mean square", "mean square")), 0),
        (rng.choice(("float32", "float64")), "cross-entropy", rng.randint(1, 3)),
    ):
        case: Case = {"ranks": 1, "gpus": 1, "type": types, "loss": loss, "rows": rng.randint(9, 70), "state": state}
        cases.append(case | {"seed": rng.getrandbits(30)})
    return cases


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import torch

    from checks.memory_and_precision import networks

    dtype = getattr(torch, case["type"])
    facts["right"], facts["guesses"] = _on_a_gpu(case, dtype)
    model = networks.network(case["seed"], dtype)
    inputs = networks.batch(model, case["seed"], case["rows"], dtype)
    model.head.weight.grad = torch.ones_like(model.head.weight)  # of the step before: it is nobody's to throw away
    given = {"model": model, "inputs": inputs}
    for more in range(2):  # again, for another optimizer: what is kept from the first time shows
        found = watch.call(
            "account", **given, loss=lambda: networks.loss(model, case["loss"], *inputs), state=case["state"] + more
        )
        facts.setdefault("found", []).append(_told(found))


def _told(found: Any) -> Any:
    """What an answer says, as plain data."""
    if not isinstance(found, dict):
        return f"a {type(found).__name__}"
    whole = [(str(key), plain.number(value, whole=True), value) for key, value in found.items()]
    return {key: repr(value)[:40] if number is None else number for key, number, value in whole}


def _on_a_gpu(case: Case, dtype: Any) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """What the ledger of a simulated GPU says, and what likely mistakes would say."""
    import torch

    import simgpu
    from checks.core import gpus
    from checks.memory_and_precision import networks

    simgpu.cluster(gpus_per_node=1)
    model = networks.network(case["seed"], dtype)
    x, classes = (one.to("simgpu:0") for one in networks.batch(model, case["seed"], case["rows"], dtype))
    empty = gpus.held()[0]
    gpus.put(model, torch.device("simgpu:0"))
    buffers = sum(gpus.rounded(one.nbytes) for one in model.buffers())
    right = {"parameters": gpus.held()[0] - empty - buffers}
    before = gpus.held()[0]
    loss = networks.loss(model, case["loss"], x, classes)
    right["activations"] = gpus.held()[0] - before
    loss.backward()
    del loss
    right["gradients"] = gpus.held()[0] - before
    trainable = [one for one in model.parameters() if one.requires_grad]
    before = gpus.held()[0]
    kept = [torch.zeros_like(one) for one in trainable for _ in range(case["state"])]
    right["optimizer state"] = gpus.held()[0] - before
    del kept
    return right, _guesses(case, dtype, right, buffers, inputs=[x, classes])


def _guesses(case: Case, dtype: Any, right: dict[str, int], buffers: int, inputs: Any) -> dict[str, dict[str, int]]:
    from checks.core.gpus import rounded
    from checks.memory_and_precision import networks

    model = networks.network(case["seed"], dtype)
    everything, trainable = list(model.parameters()), [one for one in model.parameters() if one.requires_grad]
    twice = rounded(model.square.weight.nbytes)
    exact, exact_trainable = (sum(one.nbytes for one in some) for some in (everything, trainable))
    unrounded, frozen = "no block is rounded up to 512 bytes", "the frozen layer counts"
    tied = "a tied weight counts twice"
    state, activations = case["state"], right["activations"]
    batch = sum(rounded(one.nbytes) for one in inputs[: 2 if case["loss"] == "cross-entropy" else 1])
    return {
        "parameters": {
            unrounded: exact,
            tied: right["parameters"] + twice,
            "the frozen layer is missing": right["gradients"],
            "buffers are no parameters": right["parameters"] + buffers,
        },
        "gradients": {
            unrounded: exact_trainable,
            tied: right["gradients"] + twice,
            frozen: right["parameters"],
        },
        "optimizer state": {
            unrounded: state * exact_trainable,
            tied: state * (right["gradients"] + twice),
            frozen: state * right["parameters"],
            "each of its numbers is a tensor of its own, rounded by itself": rounded(state * exact_trainable),
        },
        "activations": {
            "the loss itself is missing": activations - 512,
            "the loss counts twice: here the backward pass keeps it too": activations + 512,
            "the batch was there before": activations + batch,
            "buffers were there before": activations + buffers,
            "the batch and the buffers were there before": activations + batch + buffers,
        },
    }


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    facts = world[0]
    right = facts["right"] | {"optimizer state": (case["state"] + 1) * facts["right"]["gradients"]}
    yield from _judge_one(facts["found"][0], facts["right"], facts["guesses"])
    words = "when it is asked again, for one state more: "
    yield from (replace(one, sentence=words + one.sentence, call=1) for one in _judge_one(facts["found"][1], right, {}))


def _judge_one(found: Any, right: dict[str, int], guesses: dict[str, dict[str, int]]) -> Iterator[Broken]:
    if not isinstance(found, dict) or set(found) != set(KINDS):
        kinds = ", ".join(f'"{kind}"' for kind in KINDS)
        yield Broken("returns:kind", f"account returns a dict with the keys {kinds}", str(found)[:140])
        return
    for number, kind in enumerate(KINDS):
        value, wanted = found[kind], right[kind]
        if not isinstance(value, int):
            yield Broken("returns:number", f"the bytes of the {kind} are a plain int", value)
        elif value != wanted:
            why = next((f": {words}" for words, guess in guesses.get(kind, {}).items() if value == guess != wanted), "")
            if not why and kind == "activations":
                why = ": more than backward keeps" if value > wanted else ": less than backward keeps"
                why += ", each storage once, in blocks of 512 bytes, parameters and batch left out"
            words = f"the bytes of the {kind} are not what the GPU's ledger counts{why}"
            yield Broken(f"value:{number}", words, f"{value:,}", f"{wanted:,}")


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    right = played[0][1][0]["right"]
    return {
        "networks": len(played),
        "to the byte, in the first": ", ".join(f"{kind} {right[kind]:,}" for kind in KINDS),
    }


CONTRACT = Contract(
    name="memory_and_precision.account",
    rules={"account": Rules()},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        ("state:*.grad", "{}: predict the gradients' bytes, no backward pass is needed"),
        ("state:*", "{}"),
        ("around:*", "{}"),
        ("returns:*", "{}"),
        *((f"value:{number}", "{}") for number in range(4)),
    ),
    figures=figures,
)
