"""Checkpoints that survive a crash, and all that an exact resume needs.

- ``save`` and ``load``: one file, written so that a crash at any moment leaves either the old file or the new one.
- ``Checkpoints``: a folder with the last few checkpoints of a training on ranks. Rank 0 alone writes; every rank reads.

Every error is a ``CheckpointError`` of one sentence, raised on all ranks, and nothing has been changed then: no file on
the disk, no tensor of the model.

The state must fit into the memory of rank 0. For a model that is sharded over ranks use
``torch.distributed.checkpoint``: the lecture on sharded checkpoints does.
``utils.training.resumable`` has what else an exact resume needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from utils.training.checkpoint_files import CheckpointError, load, save
from utils.training.resumable import random_state, set_random_state

__all__ = ["CheckpointError", "Checkpoints", "Stateful", "load", "save"]

_NAME = re.compile(r"step-(\d+)\.pt")


class Stateful(Protocol):
    """Models, optimizers, schedulers, gradient scalers, samplers: whatever gives and takes its state."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


class Checkpoints:
    """The last few checkpoints of one training, in one folder. All ranks call ``save`` and ``resume`` together.

    Without a process group it is a world of one rank.

    Args:
        folder: must exist, on a disk that all nodes share. Rank 0 writes into it.
        keep: how many checkpoints stay; older ones are removed after the new one is safe.
    """

    def __init__(self, folder: str | Path, keep: int = 3) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}")
        self.folder, self.keep = Path(folder), keep
        self.skipped: list[str] = []
        """What ``resume`` passed over, a sentence for each damaged file."""

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}.pt"

    def steps(self) -> list[int]:
        """Steps of which there is a file, in order."""
        if not self.folder.is_dir():
            raise CheckpointError(f"there is no folder {self.folder}: make it first, or correct its name")
        found = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def save(self, step: int, parts: Mapping[str, Stateful]) -> None:
        """Save all parts as rank 0 has them, and the random numbers of every rank.

        When it returns, on any rank, the file is complete and on the disk.

        Args:
            step: how many steps of training are done.
            parts: name → model, optimizer, scheduler, sampler, scaler, … A model inside DistributedDataParallel is
                saved without the wrapper, so that no name begins with ``module.``.

        Raises:
            CheckpointError: on every rank, if rank 0 could not write.
        """
        random_states = _gathered(random_state())

        def write() -> None:
            states = {name: _unwrapped(part).state_dict() for name, part in parts.items()}
            value = {"step": step, "world_size": _world_size(), "parts": states, "random": random_states}
            save(value, self.path(step))
            self._tidy(step)

        _on_rank_0(write)

    def resume(self, parts: Mapping[str, Stateful], exact: bool = True) -> int:
        """Load the latest good checkpoint into the parts; damaged ones are passed over (see ``skipped``).

        Args:
            parts: as for ``save``, with the same names.
            exact: refuse a checkpoint of another number of ranks: its random numbers cannot be dealt out anew. False:
                go on without them if the number differs.

        Returns:
            How many steps are done: 0 if the folder holds no checkpoint at all.

        Raises:
            CheckpointError: on every rank: all checkpoints are damaged, or the latest good one is of another model. The
                parts are then as they were.
        """
        step, self.skipped = _on_rank_0(self._latest_good)  # a number: under NCCL, what is sent goes through GPU memory
        if step is None:
            return 0
        name = self.path(step).name
        found, problem = self._mapped(step)
        problems = _gathered(problem or _misfit(parts, found, exact))
        for problem in problems:  # if one rank refuses, all do: nobody trains on alone
            if problem:
                raise CheckpointError(f"{name} {problem}")
        checked = (nn.Module, torch.optim.Optimizer)  # by _misfit: load what could still refuse before them
        for part_name, part in sorted(parts.items(), key=lambda item: isinstance(_unwrapped(item[1]), checked)):
            state = found["parts"][part_name]
            try:  # optimizers keep what they are given, and that must not be the file
                _unwrapped(part).load_state_dict(state if isinstance(_unwrapped(part), nn.Module) else deepcopy(state))
            except Exception as error:
                first_line = str(error).partition("\n")[0]
                raise CheckpointError(f"{name} holds another kind of {part_name}: {first_line}") from error
        if found["world_size"] == _world_size():
            set_random_state(found["random"][_rank()])
        return found["step"]

    def _mapped(self, step: int) -> tuple[dict[str, Any], str | None]:
        """The checkpoint as this rank sees it, or why not. Ranks of a node share the memory that holds the file."""
        try:
            return torch.load(self.path(step), map_location="cpu", weights_only=True, mmap=True), None
        except Exception as error:
            why = "all nodes must share the disk with the folder" if isinstance(error, OSError) else error
            return {}, f"can be read on rank 0, and not on rank {_rank()}: {why}"

    def _latest_good(self) -> tuple[int | None, list[str]]:
        skipped: list[str] = []
        for step in reversed(self.steps()):
            try:
                found = load(self.path(step))
            except CheckpointError as error:
                skipped.append(str(error))
                continue
            if not isinstance(found, dict) or found.keys() != {"step", "world_size", "parts", "random"}:
                raise CheckpointError(f"{self.path(step).name} was not written by Checkpoints.save")
            return step, skipped
        if skipped:  # to begin from nothing, in silence, would be the worst answer
            raise CheckpointError(f"none of the {len(skipped)} checkpoints in {self.folder} can be read: {skipped[0]}")
        return None, skipped

    def _tidy(self, newest: int) -> None:
        """Remove old checkpoints, and what a killed process has left half written."""
        others = [step for step in self.steps() if step != newest]
        for step in others[: max(0, len(others) - self.keep + 1)]:
            self.path(step).unlink()
        for leftover in self.folder.glob(".step-*.pt.tmp"):
            leftover.unlink()


def _misfit(parts: Mapping[str, Stateful], found: Mapping[str, Any], exact: bool) -> str | None:
    """Why this checkpoint cannot be loaded into these parts; None if it can."""
    if exact and found["world_size"] != _world_size():
        was, now = found["world_size"], _world_size()
        return f"is of a training on {was} ranks, and here are {now}: without the same ranks no resume is exact"
    if found["parts"].keys() != parts.keys():
        return f"holds {', '.join(sorted(found['parts']))}, and what is to be loaded is {', '.join(sorted(parts))}"
    for name, part in parts.items():
        part, state = _unwrapped(part), found["parts"][name]
        if isinstance(part, nn.Module) and (why := _model_misfit(part, state)):
            return f"is of another model: {why}"
        if isinstance(part, torch.optim.Optimizer):
            sizes = [
                [len(group["params"]) for group in groups] for groups in (part.param_groups, state["param_groups"])
            ]
            if sizes[0] != sizes[1]:
                return f"is of another optimizer: it has {sizes[1]} parameters in its groups, and here are {sizes[0]}"
    return None


def _model_misfit(model: nn.Module, state: Mapping[str, Any]) -> str | None:
    here = {key: _shape(value) for key, value in model.state_dict().items()}
    there = {key: _shape(value) for key, value in state.items()}
    for keys, what in (
        (here.keys() - there.keys(), "is missing in it"),
        (there.keys() - here.keys(), "is not known here"),
    ):
        if keys:
            return f"{min(keys)} {what}" + (f", and {len(keys) - 1} more" if len(keys) > 1 else "")
    for key, shape in here.items():
        if there[key] != shape:
            return f"{key} has the shape {there[key]} in it and {shape} here"
    return None


def _shape(value: Any) -> list[int] | None:
    return list(value.shape) if isinstance(value, torch.Tensor) else None


def _unwrapped(part: Any) -> Any:
    wrappers = (nn.parallel.DistributedDataParallel, nn.DataParallel)
    return part.module if isinstance(part, wrappers) else part


# ---------------------------------------------------------------------- ranks
def _in_a_group() -> bool:
    return dist.is_available() and dist.is_initialized()


def _rank() -> int:
    return dist.get_rank() if _in_a_group() else 0


def _world_size() -> int:
    return dist.get_world_size() if _in_a_group() else 1


def _gathered(value: Any) -> list[Any]:
    """The value of every rank, on every rank."""
    values = [value]
    if _in_a_group():
        values = [None] * _world_size()
        dist.all_gather_object(values, value)
    return values


def _on_rank_0(work: Callable[[], Any]) -> Any:
    """Let rank 0 do something; all ranks get its result or its error, and nobody goes on before it is done."""
    outcome: list[Any] = [None, None]
    if _rank() == 0:
        try:
            outcome[0] = work()
        except CheckpointError as error:
            outcome[1] = str(error)
        except Exception as error:
            outcome[1] = f"rank 0 failed with {type(error).__name__}: {error}"
            if not _in_a_group():
                raise
    if _in_a_group():
        dist.broadcast_object_list(outcome, src=0)
    if outcome[1] is not None:
        raise CheckpointError(outcome[1])
    return outcome[0]
