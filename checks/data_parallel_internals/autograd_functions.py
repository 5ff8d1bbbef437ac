"""Exercise 5: ``Broadcast`` and ``Gather`` as ``torch.autograd.Function``, with a backward of their own."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts, Rules, compare

PRELOAD = ("checks.contracts.gpus",)
NAMES = ("Broadcast", "Gather")
KINDS = ("all of it used", "some of it used", "frozen")
SHAPES = ((), (3,), (2, 2))  # of a row


def draw(rng: random.Random) -> list[Case]:
    cases: list[Case] = []
    for few in (4, 3, 2, 5, 1):
        count = few + rng.randint(0, 1)
        devices = list(range(4)) if few == 4 else rng.sample(range(count), few)
        case = {"ranks": 1, "gpus": count, "devices": ", ".join(map(str, devices)), "seed": rng.getrandbits(30)}
        cases.append(case | {"type": rng.choice(("float64", "float32"))})
    return cases


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import simgpu

    simgpu.cluster(gpus_per_node=case["gpus"])
    dice = random.Random(case["seed"])
    facts["calls"] = []
    for kind in KINDS:
        for name in NAMES:
            _one(case, watch, facts, name, kind, dice)


def _one(case: Case, watch: Any, facts: Facts, name: str, kind: str, dice: random.Random) -> None:
    """A forward, a moment in which nobody but autograd holds what went in, and a backward."""
    import torch

    import simgpu
    from checks.contracts import gpus, snapshot
    from checks.inside import Outcome
    from simgpu.memory import rounded

    generator = torch.Generator().manual_seed(dice.getrandbits(30))
    draw = lambda *shape: torch.randn(shape, generator=generator, dtype=getattr(torch, case["type"]))  # noqa: E731
    numbers = [int(one) for one in case["devices"].split(", ")]
    devices = [simgpu.device(number) for number in numbers]
    row = dice.choice(SHAPES)
    broadcast = name == "Broadcast"
    leaves = [draw(dice.randint(1, 5), *row).to(device) for device in (devices[:1] if broadcast else devices)]
    trained = [kind != "frozen" and (number == 0 or kind != "some of it used") for number in range(len(leaves))]
    for leaf, learns in zip(leaves, trained, strict=True):
        leaf.requires_grad_(learns)
    before = gpus.held()
    given = [leaf * 2 for leaf in leaves]  # (which are no leaves, so that nobody else holds them)
    call: Facts = {"name": name, "used": kind, "numbers": numbers, "given": [gpus.plain(one) for one in given]}
    facts["calls"].append(call)
    answer = watch.answers[name]
    target = dice.choice(devices)
    call["target"] = target.index
    with gpus.seen() as call["seen"], watch.step(name, given=given):
        found = answer.apply(given[0], *devices) if broadcast else answer.apply(target, *given)
    call["kind"] = "Tensor" if isinstance(found, torch.Tensor) else type(found).__name__
    outs = list(found) if isinstance(found, tuple) else [found]
    call["got"] = [gpus.plain(one) for one in outs]
    if any(not isinstance(one, torch.Tensor) for one in outs) or call["kind"] != ("tuple" if broadcast else "Tensor"):
        return
    node = getattr(answer, "_backward_cls", None)
    call["by hand"] = [one.grad_fn is None or (node is not None and isinstance(one.grad_fn, node)) for one in outs]
    given = found = None
    call["held"] = [now - then for now, then in zip(gpus.held(), before, strict=True)]
    if not all(one["gradient"] == any(trained) for one in call["got"]) or not any(trained):
        return
    used = [number for number in range(len(outs)) if number == 0 or kind != "some of it used" or dice.random() < 0.5]
    coming = {number: draw(*outs[number].shape) for number in used}
    others = [draw(dice.randint(1, 5), *row).to(device).requires_grad_() for device in devices[::-1]]
    before = gpus.held()
    another = [leaf * 2 for leaf in others]
    with watch.step(name):  # a second call in between, with other sizes and devices
        found = answer.apply(another[0], *devices[::-1]) if broadcast else [answer.apply(target, *another)]
    sums = [one.sum() for one in found]  # (the graph of which is still there)
    found = another = None
    call["left"] = sum(gpus.held()) - sum(before) - sum(rounded(one.nbytes) for one in sums)
    there = [coming[number].to(outs[number].device) for number in used]
    with gpus.seen() as call["back"], watch.step(name, gradients=there):
        try:
            torch.autograd.backward([outs[number] for number in used], there)
        except (NotImplementedError, Outcome):
            raise
        except Exception as error:  # (it comes through autograd, and has lost its line)
            call["raised"] = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    if "raised" in call:
        return
    call["coming"] = coming
    call["gradients"] = [None if one.grad is None else snapshot.raw(one.grad).detach().clone() for one in leaves]
    call["trained"] = trained


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    for number, call in enumerate(world[0]["calls"]):
        for one in (*_forward(call), *_backward(call)):
            yield one.at(call=number)


def _forward(call: Facts) -> Iterator[Broken]:
    import torch

    from simgpu.memory import rounded

    name, numbers, got = call["name"], call["numbers"], call["got"]
    broadcast = name == "Broadcast"
    if call["kind"] != ("tuple" if broadcast else "Tensor") or any(one["kind"] != "tensor" for one in got):
        words = "a tuple with a copy for each device" if broadcast else "one tensor"
        yield Broken("returns:kind", f"{name}.apply returns {words}", call["kind"])
        return
    places = [f"GPU {number}" for number in (numbers if broadcast else [call["target"]])]
    values = [one["value"] for one in call["given"]]
    right = values[0] if broadcast else torch.cat(values)
    if len(got) != len(places):
        yield Broken("returns:number", f"{name}.apply returns a copy for each device", len(got), len(places))
        return
    for index, (one, place) in enumerate(zip(got, places, strict=True)):
        what = f"copy {index} of {name}" if broadcast else f"what {name} returns"
        if one["place"] != place:
            yield Broken("value:0 place", f"{what} is on the wrong device", one["place"], place)
        if one["value"].shape != right.shape or not torch.equal(one["value"], right):
            order = "the tensor" if broadcast else "the rows of all parts, those of part 0 first"
            shapes = [str(list(shape)) for shape in (one["value"].shape, right.shape)]
            yield Broken("value:0 numbers", f"{what} is not {order}", *shapes)
    learns = any(one["gradient"] for one in call["given"])
    if any(one["gradient"] != learns for one in got):
        words = "knows nothing of what it was made from" if learns else "wants a gradient of what is frozen"
        yield Broken("value:1 cut", f"what {name} returns {words}: call it by apply, and let forward only compute")
    elif not all(call.get("by hand", [True])):
        words = (
            f"what {name}.apply returns was not made by its own forward: autograd brings the gradient back by itself"
        )
        yield Broken("value:1 node", f"{words}. Here backward is yours")
    yield from _moved(call, "forward", call["seen"]["copies"])
    for gpu, nbytes in enumerate(call.get("held", ())):
        most = sum(rounded(one["value"].nbytes) for one in got if one["place"] == f"GPU {gpu}")
        if nbytes > most:
            words = f"{name} keeps tensors for its backward, which needs no more than sizes and devices"
            yield Broken("memory:kept", words, f"{nbytes:,} bytes on GPU {gpu}", f"at most {most:,}, what it returned")
            return
    if (left := call.get("left", 0)) > 0:
        words = (
            f"{name} keeps alive what it was given, or has returned: its backward needs no more than sizes and devices"
        )
        yield Broken("memory:left", words, f"{left:,} bytes", "0 bytes")


def _moved(call: Facts, way: str, copies: dict[str, int]) -> Iterator[Broken]:
    """Each tensor crosses once, straight from GPU to GPU. A gradient that nobody needs may stay, or go as zeros."""
    name, first = call["name"], call["numbers"][0]
    if name == "Broadcast":
        crossing = [(number != first, call["given"][0]) for number in call["numbers"]]
        needed = [index in call.get("coming", ()) for index in range(len(crossing))]
    else:
        crossing = [(one["place"] != f"GPU {call['target']}", one) for one in call["given"]]
        needed = call.get("trained", ())
    sizes = [crosses * one["value"].nbytes for crosses, one in crossing]
    most = sum(sizes)
    least = sum(size for size, one in zip(sizes, needed, strict=True) if one) if way == "backward" else most
    if through := next((link for link in copies if "host" in link), ""):
        words = f"in the {way} of {name} tensors go through the host: a copy from GPU to GPU needs no stop there"
        yield Broken("copies:host", words, f"{copies[through]:,} bytes {through}", "0 bytes")
    elif not least <= (total := sum(copies.values())) <= most:
        words = f"in the {way} of {name} other bytes move than have to"
        yield Broken("copies:bytes", words, f"{total:,} bytes", f"{most:,} bytes")


def _backward(call: Facts) -> Iterator[Broken]:
    import torch

    if "raised" in call:
        yield Broken("value:3 raised", f"the backward of {call['name']} ended with {call['raised']}")
    if "gradients" not in call:
        return
    name, coming = call["name"], call["coming"]
    yield from _moved(call, "backward", call["back"]["copies"])
    if name == "Broadcast":
        terms = list(coming.values())
        guesses = {
            "is the gradient of one copy only: all of them go into the sum": 2 * terms[0],
            "is the mean over the copies: it is their sum": 2 * sum(term.double() for term in terms) / len(terms),
        }
        what = f"after a backward through {len(terms)} of {len(call['numbers'])} copies, the gradient"
        yield from compare("value:3 sum", what, call["gradients"][0], terms, 2.0, guesses if len(terms) > 1 else {})
        return
    rows = coming[0].split([len(one["value"]) for one in call["given"]])
    for index, (got, right, learns) in enumerate(zip(call["gradients"], rows, call["trained"], strict=True)):
        if learns and (got is None or got.shape != right.shape or not torch.equal(got, 2 * right)):
            words = "is missing" if got is None else "is not that of its own rows"
            yield Broken("value:3 rows", f"after a backward through Gather, the gradient of part {index} {words}")
            return


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    first = played[0][1][0]["calls"][0]
    nbytes = first["given"][0]["value"].nbytes
    return {
        "calls": sum(len(world[0]["calls"]) for _, world in played),
        "GPUs": ", ".join(str(len(case["devices"].split(", "))) for case, _ in played),
        f"bytes of Broadcast, for {nbytes:,} to 4 GPUs": f"{sum(first['seen']['copies'].values()):,}, and as many back",
        "kept for backward": "no tensor",
    }


CONTRACT = Contract(
    name="data_parallel_internals.functions",
    rules={name: Rules() for name in NAMES},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        ("state:*", "{}"),
        ("around:*", "{}"),
        ("returns:*", "{}"),
        *((f"value:{number} *", "{}") for number in range(4)),
        ("copies:*", "{}"),
        ("memory:*", "{}"),
    ),
    refused=tuple(
        f"torch.nn.parallel.comm.{name}"
        for name in ("broadcast", "broadcast_coalesced", "reduce_add", "reduce_add_coalesced", "scatter", "gather")
    ),
    figures=figures,
)
