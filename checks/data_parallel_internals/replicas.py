"""Exercise 2: ``replicate_model(model, devices)``: for each GPU a dict of the model's tensors, by name."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts, Rules, compare, races

PRELOAD = ("checks.data_parallel_internals.nets",)
MOVED = "the model itself has moved: .to() of a module changes it in place, .to() of a tensor gives a copy"
ROUNDINGS = 200  # one after the other, in the forward and backward of these models
TURNS = (0, 1, 0)  # which model is replicated: two live side by side, and the first has been trained meanwhile
ROWS = 5


def draw(rng: random.Random) -> list[Case]:
    cases: list[Case] = []
    for few, types in ((4, "float64"), (3, "float64 and float32"), (2, "float32"), (5, "float64"), (1, "float64")):
        count = few + rng.randint(0, 1)
        devices = list(range(4)) if few == 4 else rng.sample(range(count), few)
        case = {"ranks": 1, "gpus": count, "devices": ", ".join(map(str, devices)), "type": types}
        cases.append(case | {"seed": rng.getrandbits(30)})
    return cases


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import torch

    import simgpu
    from checks.contracts import gpus, snapshot
    from checks.data_parallel_internals import nets

    simgpu.cluster(gpus_per_node=case["gpus"])
    dice = random.Random(case["seed"])
    numbers = [int(one) for one in case["devices"].split(", ")]
    models = [nets.pair(case["seed"] + n, simgpu.device(numbers[0]), case["type"], statistics=True) for n in range(2)]
    facts["calls"] = []
    for turn in TURNS:
        model, twin = models[turn]
        nets.copy_state(model, twin)
        devices = [simgpu.device(number) for number in numbers]
        before, own = gpus.held(), snapshot.copies(model)
        every_name = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
        addresses = {name: snapshot.raw(tensor).data_ptr() for name, tensor in every_name.items()}
        with simgpu.races() as found, gpus.seen() as seen:
            replicas = watch.call("replicate_model", model=model, devices=devices)
            kind = _kind(replicas)
            gpus.go_on(one for replica in replicas for one in replica.values()) if kind == "dicts" else None
        call: Facts = {"numbers": list(numbers), "seen": seen, "kind": kind, "own": own, "races": gpus.unordered(found)}
        call["coarsest"], call["saved"] = case["type"].split()[-1], list(model.state_dict())
        call |= {"addresses": addresses, "trained": {n: p.requires_grad for n, p in model.named_parameters()}}
        facts["calls"].append(call)
        if call["kind"] == "dicts":
            call["replicas"] = [{str(name): gpus.plain(one) for name, one in replica.items()} for replica in replicas]
            if len(replicas) == len(numbers):
                call["use"] = _use(model, twin, replicas, devices, dice)
        replicas = None
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.grad = None
                parameter.mul_(0.9)
        call["left"] = [now - then for now, then in zip(gpus.held(), before, strict=True)]
        numbers[1:] = dice.sample(numbers[1:], len(numbers) - 1)


def _kind(replicas: Any) -> str:
    import torch

    if not isinstance(replicas, list | tuple):
        return type(replicas).__name__
    for replica in replicas:
        if not isinstance(replica, Mapping):
            return f"list with a {type(replica).__name__}"
        for value in replica.values():
            if not isinstance(value, torch.Tensor):
                return f"list with a dict with a {type(value).__name__}"
    return "dicts"


def _use(model: Any, twin: Any, replicas: Any, devices: Sequence[Any], dice: random.Random) -> Facts | str:
    """Each replica runs on rows of its own, in any order: gradients, and whose buffers change."""
    import torch
    from torch.func import functional_call

    from checks.contracts import snapshot
    from checks.data_parallel_internals import nets

    found: Facts = {"changed": [], "terms": []}
    start = {name: one.clone() for name, one in snapshot.copies(twin).items()}
    names = [name for name, _ in model.named_buffers()]
    for index in dice.sample(range(len(devices)), len(devices)):
        before = _buffers(model, replicas, names)
        x = nets.rows(ROWS, model, seed := dice.getrandbits(30))
        try:
            functional_call(model, replicas[index], (x.to(devices[index]),)).square().sum().backward()
        except Exception as error:
            return " ".join(f"{type(error).__name__}: {error}".split())[:200]
        after = _buffers(model, replicas, names)
        found["changed"].append([index, [key for key in before if before[key] != after[key]]])
        with torch.no_grad():
            for name, tensor in (*twin.named_parameters(), *twin.named_buffers()):
                tensor.copy_(start[name])
        twin.zero_grad()
        twin(nets.rows(ROWS, twin, seed)).square().sum().backward()
        found["terms"].append(snapshot.gradients(twin))
        if index == 0:
            found["statistics"] = {name: one.clone() for name, one in twin.named_buffers()}
    return found | {"got": snapshot.gradients(model), "buffers": {n: snapshot.copies(model)[n] for n in names}}


def _buffers(model: Any, replicas: Any, names: Sequence[str]) -> dict[str, str]:
    """The bits of all buffers, by whose they are and their name."""
    from checks.contracts.snapshot import digest

    found = {f"the model's own {name}": digest(one) for name, one in model.named_buffers()}
    for number, replica in enumerate(replicas):
        if number:
            found |= {f"replica {number}'s {name}": digest(replica[name]) for name in names if name in replica}
    return found


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    for number, call in enumerate(world[0]["calls"]):
        for one in (*_replicas(call), *_copies(call), *_used(call), *_memory(call), *races.judge_races(call)):
            yield one.at(call=number)


def _replicas(call: Facts) -> Iterator[Broken]:
    """What was returned, name by name."""
    numbers = call["numbers"]
    if call["kind"] != "dicts":
        words = "replicate_model returns a list with one dict for each GPU, from names to tensors"
        yield Broken("returns:kind", words, call["kind"])
        return
    if len(call["replicas"]) != len(numbers):
        words = "replicate_model returns one dict for each GPU"
        yield Broken("returns:number", words, len(call["replicas"]), len(numbers))
        return
    for index, (number, replica) in enumerate(zip(numbers, call["replicas"], strict=True)):
        missing = [name for name in call["own"] if name not in replica]
        if parameters := [name for name in missing if name in call["trained"]]:
            words = f"the parameter {parameters[0]} is missing: layers may hold layers. named_parameters() finds all"
            if strange := [name for name in replica if name not in call["addresses"]]:
                words = f"the model has no {strange[0][:60]}: a replica has the names that named_parameters() gives"
            yield Broken("value:0 parameter", words)
            return
        for name, tensor in replica.items():
            yield from _tensor(call, index, number, name, tensor)
        if missing:
            some = any(name in replica for name in call["own"] if name not in call["trained"])
            why = "" if some else ": a replica has buffers too"
            if some and not set(missing) & set(call["saved"]):
                why = ": state_dict leaves out buffers that need not be saved"
            yield Broken("value:2 buffer", f"the buffer {missing[0]} is missing{why}. named_buffers() finds all")


def _tensor(call: Facts, index: int, number: int, name: str, tensor: Facts) -> Iterator[Broken]:
    import torch

    if name not in call["addresses"]:
        yield Broken("value:4 strange", f"replica {index} has a tensor {name}, which the model does not have")
        return
    own = call["addresses"][name]
    first = next(one for one, address in call["addresses"].items() if address == own and one in call["own"])
    learns, kind = call["trained"].get(first), "parameter" if first in call["trained"] else "buffer"
    if learns and not tensor["gradient"]:
        words = (
            f"the tensor {name} of replica {index} knows nothing of the model's parameter: no gradient can come back"
        )
        yield Broken("value:1 cut", f"{words}. Copy the parameter itself, with autograd watching")
    elif learns and index and tensor["leaf"]:
        words = (
            f"the tensor {name} of replica {index} is a new parameter: gradients end there and never reach the model"
        )
        yield Broken("value:1 leaf", f"{words}. Keep what .to(device) returns")
    elif learns is False and tensor["gradient"]:
        yield Broken("value:2 thawed", f"{name} is frozen in the model, and not in replica {index}")
    if tensor["place"] != f"GPU {number}":
        shared = ": the replicas share it with the model" if tensor["memory"] == own else ""
        words = f"the {kind} {name} of replica {index} is in the wrong place{shared}"
        yield Broken("value:3 place", words, tensor["place"], f"GPU {number}")
    elif tensor["value"].dtype != call["own"][first].dtype or not torch.equal(tensor["value"], call["own"][first]):
        words = f"the {kind} {name} of replica {index} has other numbers than the model's, as they are now"
        yield Broken("value:3 numbers", words)
    elif index == 0 and tensor["memory"] != own and tensor["value"].numel():
        why = "a copy's statistics are lost" if kind == "buffer" else "a second copy only takes memory"
        words = f"devices[0] has the model already, so its {kind} {name} should be the model's own: {why}"
        yield Broken("value:3 own", words)


def _copies(call: Facts) -> Iterator[Broken]:
    """Each of the other GPUs gets each tensor once, from whichever GPU has it."""
    copies, each = call["seen"]["copies"], sum(tensor.nbytes for tensor in call["own"].values())
    if through := next((link for link in copies if "host" in link), ""):
        words = "tensors go through the host: a copy from GPU to GPU needs no stop there"
        yield Broken("copies:host", words, f"{copies[through]:,} bytes {through}", "0 bytes")
        return
    coming = {f"GPU {number}": 0 for number in call["numbers"][1:]}
    for link, nbytes in copies.items():
        target = link.split(" → ")[1]
        coming[target] = coming.get(target, 0) + nbytes
    count = len(call["numbers"]) - 1
    if len(coming) != count or set(coming.values()) - {each}:
        words = "other bytes move; each of the other GPUs gets each tensor once, one that two layers share too"
        yield Broken(
            "copies:bytes", words, f"{sum(coming.values()):,} bytes", f"{count} × {each:,} = {count * each:,} bytes"
        )


def _used(call: Facts) -> Iterator[Broken]:
    use = call.get("use")
    if isinstance(use, str):
        yield Broken("value:5 use", f"functional_call(model, replica, …) with your dicts ended with {use}")
        return
    if not use:
        return
    for index, changed in use["changed"]:
        own = f"replica {index}'s " if index else "the model's own "
        if others := [key for key in changed if not key.startswith(own)]:
            words = f"while replica {index} runs, {others[0]} changes: buffers are not shared"
            yield Broken("value:6 shared", words, changed)
    exact = {"steps": ROUNDINGS, "beside": list(use["terms"][0].values()), "coarsest": call["coarsest"]}
    for name in use["terms"][0]:
        terms = [one[name] for one in use["terms"]]
        mean = sum(term.double() for term in terms) / len(terms)
        guesses = {"is the mean over the replicas: it is their sum": mean} if len(terms) > 1 else {}
        what = f"after a backward through each replica, the gradient of the model's own `{name}`"
        yield from compare("value:7 gradient", what, use["got"].get(name), terms, guesses=guesses, **exact)
    for name, right in use["statistics"].items():
        got = use["buffers"][name]
        if got.is_floating_point():
            what = f"after all replicas ran, the model's own {name}, which replica 0 alone may change,"
            yield from compare("value:8 statistics", what, got, [right], steps=ROUNDINGS)
        elif not bool((got == right).all()):
            words = f"after all replicas ran, the model's own {name} is another one: only replica 0 may change it"
            yield Broken("value:8 statistics", words, got.tolist(), right.tolist())


def _memory(call: Facts) -> Iterator[Broken]:
    from simgpu.memory import rounded

    one = sum(rounded(tensor.nbytes) for tensor in call["own"].values())
    for gpu, peak in enumerate(call["seen"]["peak"]):
        times = 0 if gpu not in call["numbers"] else 1 if gpu == call["numbers"][0] else 2
        if peak > times * one:
            words = f"GPU {gpu} needs more memory than a replica, and the same again to send or receive it"
            yield Broken("memory:peak", words, f"{peak:,} bytes", f"at most {times * one:,} bytes")
    if any(call["left"]):
        words = "something stays in a GPU's memory when nobody needs the replicas any more: who keeps them?"
        yield Broken("memory:left", words, call["left"], [0] * len(call["left"]))


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    first = played[0][1][0]["calls"][0]
    each = sum(tensor.nbytes for tensor in first["own"].values())
    return {
        "models": 2 * len(played),
        "GPUs": ", ".join(str(len(case["devices"].split(", "))) for case, _ in played),
        "bytes moved on 4 GPUs": f"3 × {each:,} = {sum(first['seen']['copies'].values()):,}",
        "gradients": "reach the model",
    }


CONTRACT = Contract(
    name="data_parallel_internals.replicate",
    rules={"replicate_model": Rules()},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        ("state:*.device", MOVED),
        ("state:*", "{}"),
        ("around:*", "{}"),
        ("returns:*", "{}"),
        *((f"value:{number} *", "{}") for number in range(5)),
        ("copies:*", "{}"),
        *((f"value:{number} *", "{}") for number in range(5, 9)),
    ),
    figures=figures,
)
