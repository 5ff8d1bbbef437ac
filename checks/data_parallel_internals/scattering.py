"""Exercise 1: ``scatter_batch(batch, devices)``: neighbouring rows on each GPU, straight from where they are."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from checks.contracts import Broken, Case, Contract, Facts, Rules, races

if TYPE_CHECKING:
    from torch import Tensor

PRELOAD = ("checks.contracts.gpus",)
TYPES = ("float64", "float32", "bfloat16", "int64", "bool")
LAYOUTS = ("contiguous", "every second row", "columns first", "a part of wider rows")
SHAPES = ((), (2,), (3, 2))  # of a row


def draw(rng: random.Random) -> list[Case]:
    cases: list[Case] = [{"gpus": 4, "devices": "0, 1, 2, 3", "rows": 10, "batch on": "host"}]
    for few in (1, 2, 3, 4, 5, 5):
        for rows in (rng.randint(1, few), few * rng.randint(1, 3) + rng.randint(0, few)):
            gpus = few + rng.randint(0, 2)
            devices = rng.sample(range(gpus), few)
            somewhere = rng.choice(("host", f"GPU {rng.choice(devices)}", f"GPU {rng.randrange(gpus)}"))
            cases.append({"gpus": gpus, "devices": ", ".join(map(str, devices)), "rows": rows, "batch on": somewhere})
    for number, case in enumerate(cases):
        case |= {"ranks": 1, "type": TYPES[number % len(TYPES)]}
        case |= {
            "layout": LAYOUTS[number % 4],
            "row": "×".join(map(str, SHAPES[1] if not number else rng.choice(SHAPES))),
        }
        case |= {"seed": rng.getrandbits(30)}
    return cases


def scene(case: Case, watch: Any, facts: Facts) -> None:
    """Two batches in one tensor, one after the other: who keeps the first one's parts shows."""
    import torch

    import simgpu
    from checks.contracts import gpus, memory
    from checks.contracts.snapshot import raw

    simgpu.cluster(gpus_per_node=case["gpus"])
    numbers = [int(one) for one in case["devices"].split(", ")]
    batch = _batch(case)
    learns = batch.is_floating_point()
    batch.requires_grad_(learns)
    facts["calls"] = []
    for _turn in range(2):
        devices = [simgpu.device(number) for number in numbers]
        before, was = gpus.held(), gpus.plain(batch)["value"]
        with simgpu.races() as found, gpus.seen() as seen:
            parts = watch.call("scatter_batch", batch=batch, devices=devices)
            gpus.go_on(parts if isinstance(parts, list | tuple) else ())
        call: Facts = {"numbers": list(numbers), "batch": was, "seen": seen, "kind": type(parts).__name__}
        call["races"] = gpus.unordered(found)
        facts["calls"].append(call)
        if isinstance(parts, list | tuple):
            call["parts"] = [gpus.plain(part) for part in parts]
            if learns and all(one.get("gradient") for one in call["parts"]):
                call |= _backward(case, batch, parts)
        parts = None
        call["left"] = [now - then for now, then in zip(gpus.held(), before, strict=True)]
        with torch.no_grad():
            batch.copy_(~batch if batch.dtype == torch.bool else 1 - batch)
        numbers.reverse()
    storage = memory.StorageWeakRef(raw(batch).untyped_storage())
    del batch
    call["kept"] = memory.is_kept(storage)


def _batch(case: Case) -> Tensor:
    import torch

    import simgpu
    from checks.contracts.snapshot import raw

    generator = torch.Generator().manual_seed(case["seed"])
    rows, shape = case["rows"], [int(one) for one in case["row"].split("×") if one]
    values = torch.randint(-99, 99, (rows, *shape), generator=generator).double() / 7
    values = (values > 0) if case["type"] == "bool" else values.to(getattr(torch, case["type"]))
    device = "cpu" if case["batch on"] == "host" else simgpu.device(int(case["batch on"][4:]))
    if case["layout"] == "every second row":
        batch = torch.empty(2 * rows, *shape, dtype=values.dtype, device=device)[::2]
    elif case["layout"] == "columns first":
        batch = torch.empty(*shape, rows, dtype=values.dtype, device=device).movedim(-1, 0)
    else:
        batch = torch.empty(rows, *shape, dtype=values.dtype, device=device)
    raw(batch).copy_(values)
    return (batch[..., :1] if case["layout"] == "a part of wider rows" and shape else batch).detach()


def _backward(case: Case, batch: Tensor, parts: Sequence[Tensor]) -> Facts:
    """The gradient that comes back, if each number of each part has one of its own."""
    import torch

    from checks.contracts.snapshot import raw

    generator = torch.Generator().manual_seed(case["seed"] + 1)
    sent, losses = [], []
    for part in parts:
        own = torch.randint(-9, 9, part.shape, generator=generator).to(part.dtype)
        sent.append(own)
        losses.append((part * own.to(part.device)).sum().to(batch.device))
    sum(losses).backward()
    got = None if batch.grad is None else raw(batch.grad).detach().clone()
    batch.grad = None
    return {"sent": sent, "got": got}


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    for number, call in enumerate(world[0]["calls"]):
        found = *_parts(case, call), *_gradients(call), *_route(case, call), *_memory(case, call)
        for one in (*found, *races.judge_races(call)):
            yield one.at(call=number)


def _parts(case: Case, call: Facts) -> Iterator[Broken]:
    import torch

    if "parts" not in call or any(part["kind"] != "tensor" for part in call["parts"]):
        kind = (
            call["kind"]
            if "parts" not in call
            else f"a list with a {next(p['kind'] for p in call['parts'] if p['kind'] != 'tensor')}"
        )
        yield Broken("returns:kind", f"scatter_batch returns a list of tensors, not {kind}")
        return
    batch, numbers, rows = call["batch"], call["numbers"], case["rows"]
    values = [part["value"] for part in call["parts"]]
    shapes = [list(one.shape) for one in values]
    if any(one.dim() != batch.dim() for one in values):
        words = "every part has as many dimensions as the batch, also one with a single row"
        yield Broken("value:0 dimensions", words, shapes, list(batch.shape))
        return
    if any(one.shape[1:] != batch.shape[1:] for one in values):
        yield Broken("value:0 columns", "split the rows (dimension 0), not the columns", shapes, list(batch.shape))
        return
    sizes, most = [len(one) for one in values], math.ceil(rows / len(numbers))
    if 0 in sizes:
        yield Broken("value:0 empty", "a GPU that gets no rows gets no part either", sizes)
        return
    if len({one.dtype for one in values} | {batch.dtype}) > 1:
        yield Broken("value:0 type", "a part has another type than the batch", str(values[0].dtype), str(batch.dtype))
        return
    whole = torch.cat(values) if values else batch[:0]
    if not torch.equal(whole, batch):
        yield _wrong_rows(call, whole, sizes)
        return
    if len(sizes) > len(numbers):
        yield Broken("value:1 parts", "there are more parts than GPUs", sizes)
    if max(sizes) > most:
        words = "the rows are not shared out evenly: the fullest GPU sets the pace"
        yield Broken("value:1 even", words, sizes, f"at most {most} on each")
    places = [part["place"] for part in call["parts"]]
    if places != (right := [f"GPU {number}" for number in numbers[: len(places)]]):
        where = "still on the host" if set(places) == {"host"} else "on the wrong GPU"
        yield Broken("value:2 place", f"a part is {where}: part i belongs on devices[i]", places, right)


def _wrong_rows(call: Facts, whole: Tensor, sizes: list[int]) -> Broken:
    batch = call["batch"]
    mine, right = (
        sorted(map(str, one.flatten(1).tolist() if one.dim() > 1 else one.tolist())) for one in (whole, batch)
    )
    if len(whole) > len(batch):
        return Broken("value:1 twice", "rows are on more than one GPU", sizes, f"{len(batch)} rows in all")
    if len(whole) < len(batch):
        return Broken("value:1 lost", "rows are lost, where they do not divide evenly", sizes, f"{len(batch)} in all")
    if mine == right:
        words = "the rows are out of order: neighbours stay together, the first rows go to the first GPU"
        return Broken("value:1 order", words, sizes)
    return Broken(
        "value:1 other", "the parts hold other numbers than the batch: those of another batch, or rounded ones"
    )


def _gradients(call: Facts) -> Iterator[Broken]:
    import torch

    if call["kind"] not in ("list", "tuple") or not call.get("parts"):
        return
    learns = call["batch"].is_floating_point()
    if cut := [number for number, part in enumerate(call["parts"]) if part.get("gradient", learns) != learns]:
        words = f"part {cut[0]} knows nothing of the batch, which requires a gradient: nothing can flow back"
        yield Broken("value:3 cut", words)
    elif "sent" in call and sum(map(len, call["sent"])) == len(call["batch"]):
        right = torch.cat(call["sent"])
        if call["got"] is None or not torch.equal(call["got"], right):
            yield Broken("value:3 gradient", "what comes back to the batch in backward is not what its parts got")


def _route(case: Case, call: Facts) -> Iterator[Broken]:
    """Each row goes from where it is to its GPU, once."""
    source, copies = case["batch on"], call["seen"]["copies"]
    right: dict[str, int] = {}
    for part in call.get("parts", ()):
        if part.get("place", source) != source:
            link = f"{source} → {part['place']}"
            right[link] = right.get(link, 0) + part["value"].nbytes
    if copies == right:
        return
    seen = {"measured": f"{sum(copies.values()):,} bytes: {_links(copies)}", "expected": _links(right)}
    if source != "host" and any("host" in link for link in copies):
        yield Broken("copies:host", "rows go through the host: a copy from GPU to GPU needs no stop there", **seen)
    elif detours := [link for link in copies if not link.startswith(f"{source} ")]:
        words = f"rows move twice, {detours[0]} too: send each part straight from where it is"
        yield Broken("copies:detour", words, **seen)
    else:
        yield Broken("copies:more", "more than its own rows go to a GPU: split first, then move", **seen)


def _links(copies: dict[str, int]) -> str:
    return ", ".join(f"{link}: {nbytes:,}" for link, nbytes in copies.items()) or "no copies"


def _memory(case: Case, call: Facts) -> Iterator[Broken]:
    """A GPU needs room for its rows, and for each by itself; the one that has the batch perhaps for all once more."""
    whole, room, single = _rounded(call["batch"].nbytes), {}, case["rows"] * _rounded(call["batch"][:1].nbytes)
    for part in call.get("parts", ()):
        if "value" in part:
            room[part["place"]] = room.get(part["place"], 0) + _rounded(part["value"].nbytes)
    for gpu, peak in enumerate(call["seen"]["peak"]):
        home = case["batch on"] == f"GPU {gpu}"
        most = 2 * room.get(f"GPU {gpu}", 0) + (2 * whole if home else 0)
        most += single if most else 0
        if peak > most:
            words = f"GPU {gpu} holds more for a while than the rows that it gets"
            yield Broken("memory:peak", words, f"{peak:,} bytes", f"at most {most:,} bytes")
    if any(call["left"]):
        words = "something stays in a GPU's memory when nobody needs the parts any more: who keeps them?"
        yield Broken("memory:left", words, call["left"], [0] * len(call["left"]))
    if call.get("kept"):
        yield Broken("memory:kept", "after the call the batch, or a view of it, is kept: its owner cannot free it")


def _rounded(nbytes: int) -> int:
    from simgpu.memory import rounded

    return rounded(nbytes)


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    first = played[0][1][0]["calls"][0]
    moved = {f"bytes moved for {played[0][0]['rows']} rows on 4 GPUs": sum(first["seen"]["copies"].values())}
    return {"batches": 2 * len(played), **moved, "each row moves": "once, straight to its GPU"}


CONTRACT = Contract(
    name="data_parallel_internals.scatter",
    rules={"scatter_batch": Rules()},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        ("state:batch*.value", "{}. The batch belongs to whoever called you"),
        ("state:*", "{}"),
        ("around:*", "{}"),
        ("value:*", "{}"),
        ("returns:*", "{}"),
    ),
    figures=figures,
)
