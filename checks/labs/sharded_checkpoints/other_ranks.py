"""Check of ``save`` and ``load`` with DCP: saved on N ranks, loaded on M, equal bit for bit, and nobody collects."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from checks.engine import Reference, exercise, leaves, refuse, same
from checks.engine.processes import run

PRELOAD = "torch._dynamo", "torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp"
OFFICIAL = Reference("sharded_checkpoints", "save load")
CASES = [(4, 3), (2, 4), (3, 1)]  # ranks that save, and that load
WIDTH = 170  # divided by none of them
FRAMES = 60_000  # bytes of what the ranks tell each other, and twice those around the numbers in a file
SETTINGS = 100_000  # bytes of a file that has Adam's settings for each parameter
SHARDS = 3  # of each parameter: itself, and Adam's two


@exercise(title="DCP, from N ranks to M", difficulty=2, minutes=25, official=OFFICIAL)
def elsewhere(save: Any, load: Any) -> dict[str, str]:
    """Judge ``save(model, optimizer, folder)`` on N ranks and ``load(model, optimizer, folder)`` on M."""
    for savers, loaders in CASES:
        with tempfile.TemporaryDirectory(prefix="check-") as place:
            folder = f"{place}/checkpoint"
            saved = run(saving, save, folder, ranks=savers)
            _saved(saved)
            _loaded(saved, run(loading, load, folder, ranks=loaders), f"saved by {savers} ranks, loaded by {loaders}")
    return {"ranks": ", ".join(f"{savers} → {loaders}" for savers, loaders in CASES)}


class Counting(TorchDispatchMode):
    """``received``: bytes that collectives bring this rank; ``largest``: of a tensor that is made."""

    received = largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func.namespace in ("c10d", "_c10d_functional") and "wait" not in func.__name__:
            self.received += sum(one.nbytes for one in tree_leaves(found) if isinstance(one, torch.Tensor))
        self.largest = max(self.largest, *(one.nbytes for one in tree_leaves(found) if type(one) is torch.Tensor), 0)
        return found


def build(seed: int, rate: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A sharded network with a buffer, a frozen parameter and a part in eval mode; and Adam, which has two groups."""
    from torch.distributed.fsdp import fully_shard  # (a second, for who only looks for exercises)

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(20, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 5))
    model.register_buffer("seen", torch.tensor(float(seed)))
    fully_shard(model[2])
    model[4].bias.requires_grad_(False)
    model[3].eval()
    fully_shard(model)
    first, last = {"params": [*model[0].parameters(), *model[2].parameters()]}, {"params": model[4].parameters()}
    return model, torch.optim.Adam([first, last | {"lr": rate / 2}], rate, (0.9 - rate, 0.99), rate / 1e6, rate / 9)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Steps, and the gradients of one more."""
    for number in range(steps + 1):
        model(torch.randn(4, 20)).square().mean().backward()
        if number < steps:
            optimizer.step()
            optimizer.zero_grad()


def whole(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Every tensor in full, by name; and the settings of Adam's groups."""

    def full(one: Any) -> Any:
        return (one.full_tensor() if hasattr(one, "full_tensor") else one).detach().clone()

    found = {f"model {name}": full(one) for name, one in model.state_dict().items()}
    for name, one in model.named_parameters():
        found |= {f"Adam's {kind} of {name}": full(value) for kind, value in optimizer.state.get(one, {}).items()}
    for number, group in enumerate(optimizer.param_groups):
        found[f"the learning rate of group {number}"] = float(group["lr"])
        found |= {f"Adam's {name} of group {number}": group[name] for name in ("betas", "eps", "weight_decay")}
    return found


def beside(model: nn.Module) -> dict[str, Any]:
    """What neither save nor load may change."""
    return {
        "the mode of a module, train or eval": [one.training for one in model.modules()],
        "the gradients": [one.grad is None for one in model.parameters()],
    }


def _only(name: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    changed = [what for what in before if not same(before[what], after.get(what))]
    refuse(changed, f"{name}, and changes {', '.join(changed[:3])}")


def saving(save: Any, folder: str) -> dict[str, Any]:
    """On each rank that saves."""
    model, optimizer = build(1, 0.03)
    train(model, optimizer, 2)
    before, around = whole(model, optimizer), beside(model)
    threads = threading.active_count()
    with leaves(), Counting() as count:
        save(model, optimizer, folder)
    early = threading.active_count() > threads and not any(Path(folder).rglob(".metadata"))
    refuse(early, "save returns while a thread still writes: wait until the checkpoint is complete")
    dist.barrier()
    files = [one for one in Path(folder).rglob("*") if one.is_file()]
    refuse(not files, "after save there is no file in the folder")
    words = "after save the folder has no .metadata, without which DCP cannot load: dcp.save writes it"
    refuse(not any(one.name == ".metadata" for one in files), words)
    _only("save may change nothing but its folder", before | around, whole(model, optimizer) | beside(model))
    local = SHARDS * sum(one.to_local().nbytes for one in model.parameters())
    return {"whole": before, "received": count.received, "local": local, "files": [one.stat().st_size for one in files]}


def loading(load: Any, folder: str) -> dict[str, Any]:
    """On each rank that loads."""
    model, optimizer = build(2, 0.001)
    if dist.get_world_size() % 2:  # now and then the optimizer is not fresh, and there are gradients
        train(model, optimizer, 1)
    before = beside(model)
    with leaves(), Counting() as count:
        load(model, optimizer, folder)
    _only("load may change nothing but the state that it loads", before, beside(model))
    held = {one for group in optimizer.param_groups for one in group["params"]}
    refuse(held != {*model.parameters()}, "load replaces parameters: the optimizer still holds the old ones")
    return {"whole": whole(model, optimizer), "received": count.received, "largest": count.largest}


def _saved(ranks: list[dict[str, Any]]) -> None:
    """Nobody collects, and each number is written once."""
    local, files = [one["local"] for one in ranks], ranks[0]["files"]
    words = "save brings a rank what the others have: each writes its own shards, and nobody collects"
    _at_most(sum(local) // 4 + FRAMES, max(one["received"] for one in ranks), words)
    words = "the files hold more than the state: each rank writes what it has, once, and all write one checkpoint"
    _at_most(sum(local) + SETTINGS + FRAMES // 2 * len(ranks), sum(files), words)
    _at_most(max(local) + SETTINGS + FRAMES // 2, max(files), "one file holds more than one rank's shards")


def _loaded(saved: list[dict[str, Any]], ranks: list[dict[str, Any]], case: str) -> None:
    """All is as it was saved, and each rank has read its own rows."""
    right, total = saved[0]["whole"], sum(one["local"] for one in saved)
    wrong = [name for name in right if not all(same(one["whole"].get(name), right[name]) for one in ranks)]
    refuse(wrong, f"after load, parts of the state are not those that were saved ({case}): {', '.join(wrong[:3])}")
    if len(ranks) > 1:
        words = f"load brings a rank what the others have read ({case}): each reads its own rows from the files"
        _at_most(total // 4 + FRAMES, max(one["received"] for one in ranks), words)
        words = f"load fills a tensor with all rows of a parameter ({case}): each rank reads its own, into its shard"
        _at_most(3 * WIDTH**2, max(one["largest"] for one in ranks), words)


def _at_most(most: int, found: int, words: str) -> None:
    refuse(found > most, words, measured=f"{found:,} bytes", expected=f"at most {most:,}")
