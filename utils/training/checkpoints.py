"""Checkpoints that survive a crash, and all that an exact resume needs.

- ``save`` and ``load``: one file, written so that a crash at any moment leaves either the old file or the new one.
- ``Checkpoints``: a folder with the last few checkpoints of a training on ranks. Rank 0 alone touches the disk.

Every error is a ``CheckpointError`` of one sentence, raised on all ranks, and nothing has been changed then: no file on
the disk, no tensor of the model.

The state must fit into the memory of rank 0. For a model that is sharded over ranks use
``torch.distributed.checkpoint``: the lecture on checkpointing does.
``utils.training.resumable`` has what else an exact resume needs.
"""

from __future__ import annotations

import os
import pickle
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from utils.training.resumable import random_state, set_random_state

_NAME = re.compile(r"step-(\d+)\.pt")
_ZIP_BEGINS = b"PK\x03\x04"  # files of torch.save are zip archives


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read; the text is one sentence."""


class Stateful(Protocol):
    """Models, optimizers, schedulers, gradient scalers, samplers: whatever gives and takes its state."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


# ---------------------------------------------------------------------- one file
def save(value: Any, path: str | Path) -> None:
    """Write a checkpoint in one process: after a crash there is the old file or the new one, never half a file.

    The bytes go to a temporary file in the same folder, and from the system's memory to the disk (fsync). Only then
    the file gets its name, in one step (rename), and the folder, which holds the name, goes to the disk too.

    Args:
        value: tensors and plain values in dictionaries and lists: what ``load`` reads without running code.
        path: its folder must exist.

    Raises:
        CheckpointError: no such folder, or the system refuses (a full disk). The file that was there before is intact.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise CheckpointError(f"there is no folder {path.parent}: make it first, or correct its name")
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            torch.save(value, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except (OSError, RuntimeError) as error:  # torch.save hides an OSError behind a RuntimeError of its own
        temporary.unlink(missing_ok=True)
        cause = _system_error(error)
        if cause is None:
            raise
        text = f"{path.name} could not be written ({cause.strerror}); what was saved before is untouched"
        raise CheckpointError(text) from error


def load(path: str | Path, map_location: Any = "cpu") -> Any:
    """Read a checkpoint in one process, after checking that every byte is what was written.

    ``torch.load`` notices a file that was cut off, but not a byte that has changed. The archive holds a checksum of
    each of its parts, so we compare.

    Args:
        path: the file.
        map_location: where tensors go, as for ``torch.load``. ``load_state_dict`` copies from there to where the model
            is, so the CPU is the right place unless you know better.

    Raises:
        CheckpointError: no such file, damaged, no checkpoint at all, or one that would run code.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint {path.name} in {path.parent}")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        with open(path, "rb") as file:
            begins = file.read(len(_ZIP_BEGINS))
        what = "was cut off or damaged" if begins in (b"", _ZIP_BEGINS) else "is not a checkpoint of torch"
        raise CheckpointError(f"{path.name} ({path.stat().st_size:,} bytes) {what}") from error
    if damaged is not None:
        raise CheckpointError(
            f"{path.name} is damaged: the bytes of {damaged} do not give the checksum stored with them"
        )
    try:
        return torch.load(path, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL ([\w.]+)", str(error)) or re.search(r"function ([\w.]+)", str(error))
        what = f" ({found[1]})" if found else ""
        text = (
            f"{path.name} holds more than tensors and plain values{what}: to load it would run code of whoever made it"
        )
        raise CheckpointError(text) from error
    except RuntimeError as error:
        raise CheckpointError(f"{path.name} is not a checkpoint of torch") from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _system_error(error: BaseException | None) -> OSError | None:
    """The OSError behind an exception, if there is one."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error


# ---------------------------------------------------------------------- a training on ranks
class Checkpoints:
    """The last few checkpoints of one training, in one folder. All ranks call ``save`` and ``resume`` together.

    Without a process group it is a world of one rank.

    Args:
        folder: must exist. Only rank 0 looks into it.
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
        found, self.skipped = _on_rank_0(self._latest_good)
        if found is None:
            return 0
        name = self.path(found["step"]).name
        problems = _gathered(_misfit(parts, found, exact))
        for problem in problems:  # if one rank refuses, all do: nobody trains on alone
            if problem:
                raise CheckpointError(f"{name} {problem}")
        checked = (nn.Module, torch.optim.Optimizer)  # by _misfit: load what could still refuse before them
        for part_name, part in sorted(parts.items(), key=lambda item: isinstance(_unwrapped(item[1]), checked)):
            try:
                _unwrapped(part).load_state_dict(found["parts"][part_name])
            except Exception as error:
                first_line = str(error).partition("\n")[0]
                raise CheckpointError(f"{name} holds another kind of {part_name}: {first_line}") from error
        if found["world_size"] == _world_size():
            set_random_state(found["random"][_rank()])
        return found["step"]

    def _latest_good(self) -> tuple[dict[str, Any] | None, list[str]]:
        skipped: list[str] = []
        for step in reversed(self.steps()):
            try:
                found = load(self.path(step))
            except CheckpointError as error:
                skipped.append(str(error))
                continue
            if not isinstance(found, dict) or found.keys() != {"step", "world_size", "parts", "random"}:
                raise CheckpointError(f"{self.path(step).name} was not written by Checkpoints.save")
            return found, skipped
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
