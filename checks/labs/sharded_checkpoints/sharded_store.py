"""A sharded checkpoint in memory: files that N ranks have written, for M ranks to load. They count what is read."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class Store:
    """The files of a sharded checkpoint, in memory. It counts what is read."""

    _indices: dict[str, dict[str, Any]]
    _contents: dict[str, bytes]
    asked: list[str] = field(default_factory=list)
    reads: list[tuple[str, int, int]] = field(default_factory=list)

    def files(self) -> list[str]:
        """The names of all files, in no particular order."""
        return list(self._contents)

    def index(self, file: str) -> dict[str, Any]:
        """What a file holds: tensor → {"rows": [a, b], "shape": of the whole, "dtype": name, "offset": bytes}."""
        self.asked.append(file)
        return {name: dict(entry) for name, entry in self._indices[file].items()}

    def read(self, file: str, offset: int, size: int) -> bytearray:
        """So many bytes of a file, from an offset on."""
        length = len(self._contents[file])
        if offset < 0 or size < 0 or offset + size > length:
            raise EOFError(f"bytes {offset:,} to {offset + size:,} of {file}, which has {length:,}")
        self.reads.append((file, offset, size))
        return bytearray(self._contents[file][offset : offset + size])


@dataclass(frozen=True)
class Reshard:
    """Saved by ``saved`` ranks, loaded by ``loaded``. ``seed``: where savers have cut is drawn with it."""

    saved: int
    loaded: int
    seed: int | None = None

    def __repr__(self) -> str:
        cut = ", cut anywhere" * (self.seed is not None)
        return f"{self.saved} rank{'s' * (self.saved > 1)}{cut}, loaded by {self.loaded}"


def tensors() -> dict[str, torch.Tensor]:
    """A state of odd sizes: several data types and dimensions, few rows, none at all."""
    torch.manual_seed(3)
    return {
        "embedding": torch.randn(101, 6).mul(1024).round() / 1024,  # the same bits on every kind of processor
        "norm": torch.randn(7).bfloat16(),
        "conv": torch.randn(13, 2, 3, 1),
        "counts": torch.arange(50) + 2**60,
        "moments": torch.randn(10, 4, dtype=torch.float64),
        "few": torch.randn(2, 5),
        "empty": torch.zeros(0, 3),
    }


def share(rows: int, rank: int, world_size: int) -> tuple[int, int]:
    """The rows of a rank, from and to (without): as even as can be, the first ranks have one more."""
    each, more = divmod(rows, world_size)
    first = rank * each + min(rank, more)
    return first, first + each + (rank < more)


def cuts(rows: int, case: Reshard) -> list[tuple[int, int]]:
    """The rows of each rank that has saved."""
    if case.seed is None:
        return [share(rows, rank, case.saved) for rank in range(case.saved)]
    dice = random.Random(f"{case.seed} {rows}")
    return list(itertools.pairwise([0, *sorted(dice.choices(range(rows + 1), k=case.saved - 1)), rows]))


def make_store(whole: dict[str, torch.Tensor], case: Reshard) -> Store:
    """What the ranks have written: raw bytes of their rows, one tensor after the other, and an index."""
    indices: dict[str, dict[str, Any]] = {}
    contents: dict[str, bytes] = {}
    ranks = sorted(range(case.saved), key=str)  # as text: shard-10 comes before shard-2
    for rank in ranks[1:] + ranks[:1]:
        content, index = b"head" * (rank % 3), {}
        for name, tensor in whole.items():
            first, last = cuts(len(tensor), case)[rank]
            dtype = str(tensor.dtype).removeprefix("torch.")
            index[name] = {"rows": [first, last], "shape": list(tensor.shape), "dtype": dtype, "offset": len(content)}
            content += tensor[first:last].reshape(-1).view(torch.uint8).numpy().tobytes() if last > first else b""
        indices[f"shard-{rank}"], contents[f"shard-{rank}"] = index, content
    return Store(indices, contents)
