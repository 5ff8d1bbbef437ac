"""Exercise 3: ``save(model, optimizer, folder)`` on N ranks, ``load(model, optimizer, folder)`` on M others."""

from __future__ import annotations

import os
import random
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checks.checkpointing.killing import Notes
from checks.contracts import Broken, Case, Contract, Facts, Rules
from checks.sharded_checkpoints.worlds import World, counting
from checks.verdicts import NotStarted, Wrong

if TYPE_CHECKING:
    from torch import nn

PRELOAD = (
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
)
FRAMES = 60_000  # bytes beside the numbers: of a file, and of what the ranks tell each other
SETTINGS_TOO = 130_000  # of a file that has Adam's settings for each parameter
SETTINGS = ("betas", "eps", "weight_decay")
STATES = 3  # numbers for each parameter: itself, and Adam's two


def draw(rng: random.Random) -> list[Case]:
    """More ranks and fewer, widths that are no multiple of them, one rank."""
    pairs = [(4, 3), (2, 4), rng.choice(((3, 1), (1, 3), (3, 2)))]
    return [
        {"ranks": 1, "saved by": saved, "loaded by": loaded, "width": rng.randint(150, 190),
         "rate": round(rng.uniform(0.02, 0.05), 4), "seed": rng.getrandbits(30)}
        for saved, loaded in pairs
    ]  # fmt: skip


def build(case: Case, seed: int, rate: float) -> tuple[nn.Module, Any]:
    """A sharded network with a buffer, a frozen parameter and a part in eval mode; and Adam, which has two groups."""
    import torch
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(seed)
    width = case["width"]
    model = nn.Sequential(nn.Linear(20, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 5))
    model.register_buffer("seen", torch.tensor(float(seed % 100)))
    fully_shard(model[2])
    model[4].bias.requires_grad_(False)
    model[3].eval()
    fully_shard(model)
    first, last = {"params": [*model[0].parameters(), *model[2].parameters()]}, {"params": model[4].parameters()}
    return model, torch.optim.Adam([first, last | {"lr": rate / 2}], rate, (0.9 - rate, 0.99), rate / 1e6, rate / 9)


def train(model: nn.Module, optimizer: Any, steps: int) -> None:
    import torch

    for _ in range(steps):
        model(torch.randn(4, 20)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def whole(model: nn.Module, optimizer: Any) -> dict[str, Any]:
    """Every tensor in full, by name; and the settings of Adam's groups."""
    import torch
    from torch.distributed.tensor import DTensor

    def full(one: Any) -> Any:
        one = one.full_tensor() if isinstance(one, DTensor) else one
        return one.detach().clone() if isinstance(one, torch.Tensor) else one

    found = {f"model {name}": full(one) for name, one in model.state_dict().items()}
    for name, one in model.named_parameters():
        found |= {f"Adam's {kind} of {name}": full(value) for kind, value in optimizer.state.get(one, {}).items()}
    for name, shown in (("lr", "the learning rate"), *((name, f"Adam's {name}") for name in SETTINGS)):
        found |= {f"{shown} of group {n}": list(map(float, [group[name]] if name != "betas" else group[name]))
                  for n, group in enumerate(optimizer.param_groups)}  # fmt: skip
    return found


def local_bytes(model: nn.Module) -> int:
    return STATES * sum(one.to_local().nbytes for one in model.parameters())


def _marks(model: nn.Module) -> dict[str, Any]:
    """What neither save nor load may change, by what it is."""
    from checks.contracts.events import is_torchs_folder
    from checks.contracts.surroundings import surroundings

    parameters, modules = list(model.parameters()), list(model.modules())
    hooks = [[len(hooks) for name, hooks in vars(one).items() if name.endswith("_hooks")] for one in modules]
    around = surroundings()
    for free in ("the files in its folder", "the number of threads"):  # the checkpoint's own, and who writes them
        around.pop(free)
    beside = sorted(name for name in os.listdir() if not is_torchs_folder(name))
    return around | {
        "the files beside the checkpoint's folder": str(beside),
        "the mode of a module, train or eval": str([one.training for one in modules]),
        "requires_grad of a parameter": str([one.requires_grad for one in parameters]),
        "the hooks of a module": str(hooks),
        "the hooks of a parameter": str([len(one._backward_hooks or ()) for one in parameters]),
        "the gradients": str([one.grad is not None for one in parameters]),
    }


def _touched(before: dict[str, Any], model: nn.Module) -> str:
    """The first of these that is other than before."""
    from checks.contracts.surroundings import changed

    return next((name for name, *_ in changed(before, _marks(model))), "")


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import torch
    import torch._dynamo  # here, and not in each of the processes that are forked
    import torch.distributed as dist
    import torch.distributed.checkpoint.state_dict
    import torch.distributed.fsdp

    save, load = watch.answers["save"], watch.answers["load"]
    here = Path(tempfile.mkdtemp(dir=os.getcwd()))
    folder = here / "checkpoint"

    def saving(case: Case, rank: int, note: Notes) -> None:
        model, optimizer = build(case, case["seed"], case["rate"])
        train(model, optimizer, 2)
        model(torch.randn(4, 20)).sum().backward()  # gradients of a step that goes on after the save
        before, marks = whole(model, optimizer), _marks(model)
        dist.barrier()
        with counting() as count:
            threads = threading.active_count()
            save(model, optimizer, str(folder))
        if threading.active_count() > threads and not any(folder.rglob(".metadata")):
            raise Wrong("it returns while a thread still writes: wait until the checkpoint is complete.")
        touched = _touched(marks, model)
        dist.barrier()
        files = _sizes(folder)
        after = whole(model, optimizer)
        if rank == 0:
            torch.save(before, here / "truth.pt")
        changed = next((name for name in before if not _equal(before[name], after.get(name))), "")
        told = {"changed": changed, "touched": touched}
        note("told", received=count.received, largest=count.largest, local=local_bytes(model), files=files, **told)
        dist.barrier()

    def loading(case: Case, rank: int, note: Notes) -> None:
        model, optimizer = build(case, case["seed"] + 1, 0.001)
        if case["loaded by"] % 2:  # now and then the optimizer is not fresh, and there are gradients
            train(model, optimizer, 1)
            model(torch.randn(4, 20)).sum().backward()
        owned = [one.to_local() for one in model.parameters()]
        marks = _marks(model)
        dist.barrier()
        with counting() as count:
            load(model, optimizer, str(folder))
        touched = _touched(marks, model)
        found = whole(model, optimizer)
        if rank == 0:
            torch.save(found, here / "found.pt")
        told = {"received": count.received, "largest": count.largest, "touched": touched}
        note("told", **told, same=all(map(_is, owned, [p.to_local() for p in model.parameters()])))
        dist.barrier()

    facts["saved"] = World(case, case["saved by"], folder, saving).told()
    if not all(end == 0 for end in facts["saved"]["ended"]):
        return
    facts["files"] = _sizes(folder)
    facts["loaded"] = World(case, case["loaded by"], folder, loading).told()
    if all(end == 0 for end in facts["loaded"]["ended"]):
        truth, found = (torch.load(here / name) for name in ("truth.pt", "found.pt"))
        facts["wrong"] = [name for name in truth if not _equal(truth[name], found.get(name))]
        facts["whole"] = STATES * sum(one.nbytes for name, one in truth.items() if name.startswith("model "))


def _sizes(folder: Path) -> dict[str, int]:
    """The bytes of each file."""
    return {str(path): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def _is(one: Any, other: Any) -> bool:
    return one.data_ptr() == other.data_ptr()


def _equal(one: Any, other: Any) -> bool:
    import torch

    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    return one == other


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    """It ends, on all ranks; nobody collects; each byte once; equal bit for bit elsewhere."""
    facts = world[0]
    for which, words in (("saved", f"save on {case['saved by']} ranks"), ("loaded", f"load on {case['loaded by']}")):
        played = facts.get(which)
        if played is None:
            return
        if failed := played["failed"]:
            if failed["kind"] == "not started":
                raise NotStarted
            yield Broken("value:raised", f"{words}: {failed['sentence'].rstrip('.')}")
            return
        if any(end is None or end != 0 for end in played["ended"]):
            yield Broken("value:ends", f"{words} never ends: do all ranks call it, all of it?", str(played["ended"]))
            return
    yield from _judge_saved(case, facts)
    yield from _judge_loaded(case, facts)


def _judge_saved(case: Case, facts: Facts) -> Iterator[Broken]:
    saved, notes = facts["saved"], facts["saved"]["notes"]
    if changed := next((note["changed"] for note in notes if note["changed"]), ""):
        yield Broken("value:changed", f"save changes what it saves: {changed} is other than before")
    if touched := next((note["touched"] for note in notes if note["touched"]), ""):
        yield Broken("value:changed", f"save writes files into its folder, and may change nothing else: not {touched}")
    total, largest = sum(note["local"] for note in notes), max(note["local"] for note in notes)
    most = max(note["received"] for note in saved["notes"])
    if case["saved by"] > 1 and most > total // 4 + FRAMES:
        words = "save brings a rank what the others have: each writes its own shards, and nobody collects"
        yield Broken("value:0 collected", words, f"{most:,} bytes received", "plans only, some kilobytes")
    if not facts["files"]:
        yield Broken("value:files", "after save there is no file in the folder")
    elif any(note["files"] != facts["files"] for note in notes):
        yield Broken("value:files", "when save returns, files are still being written: wait until they are whole")
    elif sum(facts["files"].values()) > total + SETTINGS_TOO + FRAMES // 2 * case["saved by"]:
        words = (
            "the files hold more than the state: each number is written once, by the rank that has it, and all ranks "
        )
        words += "write one checkpoint together"
        yield Broken("value:1 twice", words, f"{sum(facts['files'].values()):,} bytes", f"{total:,} and small frames")
    elif max(facts["files"].values()) > largest + SETTINGS_TOO:
        words = "one file holds more than one rank's shards"
        yield Broken(
            "value:2 one file", words, f"{max(facts['files'].values()):,} bytes", f"{largest:,} and small frames"
        )


def _judge_loaded(case: Case, facts: Facts) -> Iterator[Broken]:
    if wrong := facts["wrong"]:
        kind = "adam" if wrong[0].startswith("Adam") else "model"
        words = f"after load, parts of the state are not those that were saved: {', '.join(wrong[:3])}"
        yield Broken(f"value:3 {kind}", words)
        return
    notes, total = facts["loaded"]["notes"], facts["whole"]
    most = max(note["received"] for note in notes)
    if case["loaded by"] > 1 and most > total // 4 + FRAMES:
        words = "load brings a rank what the others have read: each reads its own rows from the files"
        yield Broken("value:4 received", words, f"{most:,} bytes", "plans only")
    if min(case["saved by"], case["loaded by"]) > 1 and max(note["largest"] for note in notes) > case["width"] ** 2 * 3:
        words = "load fills a tensor with all rows of a parameter: each rank reads its own rows, into its shard"
        yield Broken(
            "value:4 received", words, f"{max(note['largest'] for note in notes):,} bytes", "no larger than a shard"
        )
    if touched := next((note["touched"] for note in notes if note["touched"]), ""):
        yield Broken("value:changed", f"load changes the state of model and optimizer, and nothing else: not {touched}")
    if not all(note["same"] for note in notes):
        yield Broken("value:5 replaced", "load replaces parameters: the optimizer still holds the old ones")


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    return {
        "ranks": ", ".join(f"{case['saved by']} → {case['loaded by']}" for case, _ in played),
        "bit for bit": "parameters, Adam's state, learning rate",
    }


CONTRACT = Contract(
    name="sharded_checkpoints.elsewhere",
    rules={"save": Rules(), "load": Rules()},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=tuple((f"value:{clause}", "{}") for clause in ("raised", "ends", "changed", "files", "*")),
    figures=figures,
)
