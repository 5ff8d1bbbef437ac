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
MODES, GRADIENTS = "the mode of a module, train or eval", "the gradients"
SHARDS = 3  # of each parameter: itself, and Adam's two


@exercise(title="DCP, from N ranks to M", difficulty=2, minutes=25, official=OFFICIAL)
def elsewhere(save: Any, load: Any) -> dict[str, str]:
    """Judge ``save(model, optimizer, folder)`` on N ranks and ``load(model, optimizer, folder)`` on M."""
    for savers, loaders in CASES:
        with tempfile.TemporaryDirectory(prefix="check-") as place:
            saved, *_ = run(saving, save, f"{place}/checkpoint", ranks=savers)
            run(loading, load, f"{place}/checkpoint", saved, ranks=loaders)
    return {"ranks": ", ".join(f"{savers} → {loaders}" for savers, loaders in CASES)}


class Counting(TorchDispatchMode):
    """``received``: bytes that collectives bring this rank; ``largest``: of a tensor that is made."""

    received = largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
        if func.namespace in ("c10d", "_c10d_functional") and "wait" not in func.__name__:
            self.received += sum(one.nbytes for one in tensors)
        self.largest = max(self.largest, *(one.nbytes for one in tensors if type(one) is torch.Tensor), 0)
        return result


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
    """Every tensor in full, by name; the settings of Adam's groups; and what is beside them."""

    def full(one: Any) -> Any:
        return (one.full_tensor() if hasattr(one, "full_tensor") else one).detach().clone()

    state = {f"model {name}": full(one) for name, one in model.state_dict().items()}
    for name, one in model.named_parameters():
        state |= {f"Adam's {kind} of {name}": full(value) for kind, value in optimizer.state.get(one, {}).items()}
    for number, group in enumerate(optimizer.param_groups):
        state[f"the learning rate of group {number}"] = float(group["lr"])
        state |= {f"Adam's {name} of group {number}": group[name] for name in ("betas", "eps", "weight_decay")}
    state[MODES] = [one.training for one in model.modules()]
    return state | {GRADIENTS: [one.grad is None for one in model.parameters()]}


def _compare(sentence: str, right: dict[str, Any], state: dict[str, Any]) -> None:
    wrong = [name for name in right if not same(state.get(name), right[name])]
    refuse(wrong, f"{sentence} {', '.join(wrong[:3])}")


def _at_most(most: int, size: int, sentence: str) -> None:
    refuse(size > most, sentence, measured=f"{size:,} bytes", expected=f"at most {most:,}")


def saving(save: Any, folder: str) -> dict[str, Any]:
    """On each rank that saves: nobody collects, and each number is written once. The state, and its bytes."""
    model, optimizer = build(1, 0.03)
    train(model, optimizer, 2)
    state, threads = whole(model, optimizer), threading.active_count()
    with leaves(), Counting() as count:
        save(model, optimizer, folder)
    early = threading.active_count() > threads and not any(Path(folder).rglob(".metadata"))
    refuse(early, "save returns while a thread still writes: wait until the checkpoint is complete")
    dist.barrier()
    local = [SHARDS * sum(one.to_local().nbytes for one in model.parameters())] * dist.get_world_size()
    dist.all_gather_object(local, local[0])
    files = [one for one in Path(folder).rglob("*") if one.is_file()]
    fault = "after save the folder has no .metadata, without which DCP cannot load: dcp.save writes it"
    refuse(not any(one.name == ".metadata" for one in files), fault)
    _compare("save may change nothing but its folder, and changes", state, whole(model, optimizer))
    fault = "save brings a rank what the others have: each writes its own shards, and nobody collects"
    _at_most(sum(local) // 4 + FRAMES, count.received, fault)
    sizes = [one.stat().st_size for one in files]
    fault = "the files hold more than the state: each rank writes what it has, once, and all write one checkpoint"
    _at_most(sum(local) + SETTINGS + FRAMES // 2 * len(local), sum(sizes), fault)
    _at_most(max(local) + SETTINGS + FRAMES // 2, max(sizes), "one file holds more than one rank's shards")
    return {"state": state, "bytes": sum(local)}


def loading(load: Any, folder: str, saved: dict[str, Any]) -> None:
    """On each rank that loads: all is as it was saved, and each has read its own rows."""
    model, optimizer = build(2, 0.001)
    if dist.get_world_size() % 2:  # now and then the optimizer is not fresh, and there are gradients
        train(model, optimizer, 1)
    before = whole(model, optimizer)
    with leaves(), Counting() as count:
        load(model, optimizer, folder)
    held = {one for group in optimizer.param_groups for one in group["params"]}
    refuse(held != {*model.parameters()}, "load replaces parameters: the optimizer still holds the old ones")
    words = f"after load on {dist.get_world_size()} ranks, not as it was saved (modes and gradients: as before load):"
    _compare(words, saved["state"] | {name: before[name] for name in (MODES, GRADIENTS)}, whole(model, optimizer))
    if dist.get_world_size() > 1:
        words = "load brings a rank what the others have read: each reads its own rows from the files"
        _at_most(saved["bytes"] // 4 + FRAMES, count.received, words)
        words = "load fills a tensor with all rows of a parameter: each rank reads its own, into its shard"
        _at_most(3 * WIDTH**2, count.largest, words)
