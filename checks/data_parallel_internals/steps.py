"""What exercises 3 and 4 share: steps with a data-parallel function, seen from all GPUs, and the same on one device.

Two models live side by side and are trained in turn, with batches of other sizes.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from checks.contracts import Broken, Case, Facts, Rules, compare, races

if TYPE_CHECKING:
    from torch import Tensor

MOVED = "the model itself has moved: .to() of a module changes it in place, .to() of a tensor gives a copy"
ROUNDINGS = 200  # one after the other, in the forward and backward of these models
PRELOAD = ("checks.data_parallel_internals.nets",)
REFUSED = ("torch.nn.DataParallel.__init__", "torch.nn.parallel.data_parallel.data_parallel")
TURNS = (0, 1, 0)
BACKWARD = "the backward pass behind it"
MISTAKES = (
    ("ready:*", "{}. nn.DataParallel does not count: write its four steps"),
    ("state:*.device", MOVED),
    ("state:*.grad", "{}: the model has gradients before anyone called backward. Leave that to the caller"),
    ("state:*", "{}"),
    ("around:*", "{}"),
    ("returns:*", "{}"),
    *((f"value:{number} *", "{}") for number in range(9)),
    ("work:*", "{}"),
    ("copies:*", "{}"),
)
AFTERWARDS = Rules(changes=("model.*.grad", "batch.grad"))


def draw(rng: random.Random) -> list[Case]:
    """Cases with steps: GPUs, and for each step how many rows the batch has."""
    cases: list[Case] = []
    for few, types in ((4, "float64"), (3, "float32"), (rng.choice((2, 5)), "float64 and float32"), (1, "float64")):
        count = few + rng.randint(0, 1)
        devices = list(range(4)) if few == 4 else rng.sample(range(count), few)
        rows = [few * rng.randint(2, 3) + rng.randint(1, few), rng.randint(1, few), rng.randint(few, 4 * few)]
        rng.shuffle(rows)
        case = {"ranks": 1, "gpus": count, "devices": ", ".join(map(str, devices)), "play": "steps", "type": types}
        cases.append(case | {"rows": ", ".join(map(str, rows)), "seed": rng.getrandbits(30)})
    return cases


def play(case: Case, watch: Any, facts: Facts, function: str) -> None:
    """The steps of a case. A function that gets targets returns a loss."""
    import torch

    import simgpu
    from checks.contracts import gpus, snapshot
    from checks.data_parallel_internals import nets

    simgpu.cluster(gpus_per_node=case["gpus"])
    dice, with_targets = random.Random(case["seed"]), function == "data_parallel_loss"
    numbers = [int(one) for one in case["devices"].split(", ")]
    home = simgpu.device(numbers[0])
    models = [nets.pair(case["seed"] + n, home, case["type"], statistics=False) for n in range(2)]
    with torch.no_grad():
        for model, _ in models if "one class" in case else ():
            model.body.head.bias[0] -= 200
    facts["steps"] = []
    for turn, rows in zip(TURNS, map(int, case["rows"].split(", ")), strict=True):
        model, twin = models[turn]
        before = gpus.held()  # (when there is no batch yet: one that is gone again would hide what is kept)
        batch = nets.rows(rows, model, dice.getrandbits(30))
        learns = dice.random() < 0.5
        given = {"batch": _layout(batch.to(home), dice).requires_grad_(learns)}
        if with_targets:
            targets = torch.randint(model.body.head.out_features, (rows,))
            given["targets"] = targets.to(home)
        else:
            targets = None
        with torch.no_grad(), gpus.seen() as alone:
            model(given["batch"][:1])
        stale = _on_host(twin, batch, targets)["right"]
        nets.copy_state(model, twin)
        step: Facts = _on_host(twin, batch.requires_grad_(learns), targets) | {"stale": stale, "rows": rows}
        step |= {"numbers": list(numbers), "alone": sum(alone["flops"]["forward"]), "sizes": nets.sizes(model, batch)}
        step["rounding"] = rounding(case)
        facts["steps"].append(step)
        devices = [simgpu.device(number) for number in numbers]
        with simgpu.races() as found, gpus.seen() as step["ahead"]:
            output = watch.call(function, model=model, **given, devices=devices)
            races.go_on([output])
        step["races"] = races.plain(found)
        step["got"] = gpus.plain(output)
        stays = {gpus.place(tensor) for tensor in nets.state(model)} == {f"GPU {numbers[0]}"}
        if stays and _is_usable(step, f"GPU {numbers[0]}"):
            factor = _weights(step["right"], case["seed"]).to(home)
            with watch.step(BACKWARD, model=model, batch=given["batch"]), gpus.seen() as step["back"]:
                (output * factor).sum().backward()
            step["gradients"] = snapshot.gradients(model)
            grad = given["batch"].grad
            step["of the batch"] = None if grad is None else snapshot.raw(grad).detach().clone()
            step |= _gradients_on_host(twin, batch, targets, case["seed"], -(-rows // len(numbers)))
        output = factor = grad = None
        given["batch"].grad = None
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.grad = None
                parameter.mul_(0.9)
        given.clear()
        devices.clear()
        held = gpus.held()
        step["left"] = [max(0, now - then) for now, then in zip(held, before, strict=True)]
        numbers[1:] = dice.sample(numbers[1:], len(numbers) - 1)


def _layout(batch: Tensor, dice: random.Random) -> Tensor:
    """The same numbers, perhaps with gaps between the rows."""
    import torch

    return torch.cat([batch, batch], 1)[:, : batch.shape[1]].detach() if dice.random() < 0.4 else batch


def _on_host(twin: Any, batch: Tensor, targets: Tensor | None) -> Facts:
    import torch
    from torch.nn import functional

    with torch.no_grad():
        output = twin(batch)
        if targets is None:
            return {"right": output}
        alone = functional.cross_entropy(output, targets, reduction="none")
        return {"right": functional.cross_entropy(output, targets), "rows alone": alone}


def _is_usable(step: Facts, home: str) -> bool:
    got = step["got"]
    return (
        got["kind"] == "tensor"
        and got["gradient"]
        and got["place"] == home
        and got["value"].shape == step["right"].shape
    )


def _weights(like: Tensor, seed: int) -> Tensor:
    """What each number of an output is multiplied by before backward."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(like.shape, generator=generator, dtype=torch.float64) + 0.5).to(like.dtype)


def _gradients_on_host(twin: Any, batch: Tensor, targets: Tensor | None, seed: int, first: int) -> Facts:
    """What one device computes; and what comes of the rows of the first GPU alone."""
    from torch.nn import functional

    from checks.contracts import snapshot

    found: Facts = {}
    for name, count in (("first rows", first), ("own", len(batch))):
        twin.zero_grad()
        batch.grad = None
        output = twin(batch[:count])
        if targets is None:
            (output * _weights_of(output, batch, twin, seed)).sum().backward()
        else:
            loss = functional.cross_entropy(output, targets[:count], reduction="sum") / len(batch)
            (loss * _weights(loss, seed)).backward()
        found[name] = snapshot.gradients(twin)
    return found | {"right of the batch": None if batch.grad is None else batch.grad.clone()}


def _weights_of(output: Tensor, batch: Tensor, twin: Any, seed: int) -> Tensor:
    return _weights(output.new_empty(len(batch), *output.shape[1:]), seed)[: len(output)]


# --- What is judged


def rounding(case: Case) -> dict[str, Any]:
    """How far rounding may take what such a model computes."""
    return {"steps": ROUNDINGS, "coarsest": case["type"].split()[-1]}


def judge_gradients(step: Facts) -> Iterator[Broken]:
    """Those of the model's own parameters, and of the batch."""
    if "own" not in step:
        return
    exact = step["rounding"] | {"beside": list(step["own"].values())}
    for name, right in step["own"].items():
        guesses = {
            "comes from the rows of the first GPU alone: the other replicas are cut off": step["first rows"][name]
        }
        if name not in step["gradients"]:
            words = f"no gradient comes back to the model's own `{name}`: have the replicas lost the graph?"
            yield Broken("value:6 lost", words)
            continue
        what = f"the gradient of `{name}`"
        yield from compare("value:7 gradient", what, step["gradients"][name], [right], guesses=guesses, **exact)
    if extra := sorted(set(step["gradients"]) - set(step["own"])):
        yield Broken("value:7 extra", f"`{extra[0]}` gets a gradient, though it is frozen")
    if (right := step["right of the batch"]) is not None:
        if step["of the batch"] is None:
            words = "the batch requires a gradient, and none comes back to it: it was cut off on its way to the GPUs"
            yield Broken("value:8 batch", words)
        else:
            yield from compare(
                "value:8 batch", "the gradient of the batch", step["of the batch"], [right], **step["rounding"]
            )


def shares(rows: int, gpus: int) -> tuple[int, list[int]]:
    """How many rows a GPU gets at most, and how many may leave the first GPU."""
    most = math.ceil(rows / gpus)
    fewest = max(1, rows - (gpus - 1) * most)
    return most, [rows - first for first in range(fewest, most + 1)]


def judge_work(step: Facts) -> Iterator[Broken]:
    """Every row goes forward once, and no GPU has more rows than its share."""
    rows, numbers, alone = step["rows"], step["numbers"], step["alone"]
    most, _ = shares(rows, len(numbers))
    wanted = math.ceil(rows / most)
    done = {gpu: flops / alone for gpu, flops in enumerate(step["ahead"]["flops"]["forward"]) if flops}
    shown = ", ".join(f"GPU {gpu}: {count:.3g}" for gpu, count in done.items())
    if len(set(done) & set(numbers)) < wanted or (
        "back" in step and sum(bool(flops) for flops in step["back"]["flops"]["backward"]) < wanted
    ):
        yield Broken("work:gpus", "not every GPU works, forward and backward", f"rows: {shown}", f"{wanted} GPUs")
    elif sum(done.values()) > 1.01 * rows:
        yield Broken("work:twice", "rows go forward more than once", f"rows: {shown}", f"{rows} in all")
    elif max(done.values()) > most * 1.01 or set(done) - set(numbers):
        yield Broken("work:share", "a GPU works on more rows than its share", f"rows: {shown}", f"at most {most} each")
    elif sum(done.values()) < 0.99 * rows:
        yield Broken("work:never", "some rows never go forward", f"rows: {shown}", f"{rows} in all")


def judge_bytes(
    step: Facts, of_row: int, beside: int, spare: int, guess: Callable[[int, int], Mapping[int, str]]
) -> Iterator[Broken]:
    """Forward and backward, each thing that has to move moves once.

    Args:
        of_row: bytes of what comes of a row and goes back to the first GPU.
        beside: bytes of a row beside the batch: its target.
        spare: bytes that may move in addition, for each GPU in each direction.
        guess: what is likely, by how many bytes it moves; from the number of other GPUs and of rows
            that leave the first.
    """
    rows, numbers, sizes = step["rows"], step["numbers"], step["sizes"]
    copies, back = (
        {
            link: nbytes
            for link, nbytes in step.get(phase, {}).get("copies", {}).items()
            if not _is_a_weight(link, nbytes, spare)
        }
        for phase in ("ahead", "back")
    )
    if through := next((link for link in (*copies, *back) if "host" in link), ""):
        yield Broken(
            "copies:0 host", "something goes through the host: a copy from GPU to GPU needs no stop there", through
        )
        return
    arrived = sum(nbytes for link, nbytes in copies.items() if link.endswith(f"→ GPU {numbers[0]}"))
    sent, returned = sum(copies.values()) - arrived, sum(back.values())
    most, aways = shares(rows, len(numbers))
    used, right, words = math.ceil(rows / most) - 1, [], ""
    at_work = sum(map(bool, step["ahead"]["flops"]["forward"])) - 1  # beside the first
    for away, gpus in itertools.product(aways, range(used, len(numbers))):
        there, here = gpus * sizes["state"] + away * (sizes["input"] + beside), away * of_row
        right += [there + here] * (gpus == at_work)
        words = words or guess(gpus, away).get(sent + arrived, "")
        fits = 0 <= sent - there <= spare * gpus and 0 <= arrived - here <= spare * gpus
        if fits and gpus > at_work:
            words = "GPUs that have no rows get the model too: replicate it for as many GPUs as have rows"
        elif fits:
            grads = away * (of_row + sizes["input"] * sizes["learns"])
            # (Torch's own functions send back zeros for what is frozen, or not used.)
            least, bound = used * sizes["trained"] + grads, gpus * (sizes["parameters"] + 2 * spare) + grads
            if "back" in step and not least <= returned <= bound:
                words = "in backward other bytes move than gradients of outputs and of parameters, each once"
                yield Broken("copies:2 back", words, f"{returned:,} bytes", f"{least:,} bytes")
            return
    words = words or "in forward other bytes move than parameters, buffers, rows and what comes of them, each once"
    expected = " or ".join(f"{one:,}" for one in dict.fromkeys(right[:3]))
    yield Broken("copies:1 ahead", words, f"{sent + arrived:,} bytes", f"{expected} bytes")


def _is_a_weight(link: str, nbytes: int, spare: int) -> bool:
    """A few numbers that the program itself hands in."""
    return link.startswith("host") and nbytes <= spare


def judge_left(step: Facts) -> Iterator[Broken]:
    yield from races.judge_races(step)
    if any(step["left"]):
        words = "something stays in a GPU's memory after the step: who keeps replicas, parts or outputs?"
        yield Broken("memory:left", words, step["left"], [0] * len(step["left"]))
