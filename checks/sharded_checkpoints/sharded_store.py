"""A sharded checkpoint in memory: files that N ranks have written, for M ranks to load. They count what is read."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Rows = tuple[int, int]  # from, to (without)


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
    """Saved by ``saved`` ranks, loaded by ``loaded``.

    Args:
        uneven: cut at odd places, with empty shards.
        seed: cut anywhere, and the files have other names; the places are drawn with this seed.
        gaps: between the tensors of a file.
    """

    saved: int
    loaded: int
    uneven: bool = False
    seed: int | None = None
    gaps: bool = False

    def __repr__(self) -> str:
        how = "unevenly" if self.uneven else "anywhere" if self.seed is not None else ""
        how += ", with gaps between the tensors" * self.gaps
        return f"{self.saved} → {self.loaded} ranks" + (f", cut {how}" if how else "")

    def file(self, rank: int) -> str:
        """The name of what a rank has written."""
        return f"shard-{rank}" if self.seed is None else f"{random.Random(f'{self.seed} {rank}').getrandbits(40):x}.bin"


def tensors() -> dict[str, torch.Tensor]:
    """A state of odd sizes: several data types and dimensions, few rows, none at all."""
    import torch

    torch.manual_seed(3)
    return {
        "embedding": torch.randn(101, 6).mul(1024).round() / 1024,  # the same bits on every kind of processor
        "norm": torch.randn(7).bfloat16(),
        "conv": torch.randn(13, 2, 3, 3),
        "counts": torch.arange(50, dtype=torch.int64) * 3,
        "moments": torch.randn(10, 4, dtype=torch.float64),
        "few": torch.randn(2, 5),
        "empty": torch.zeros(0, 3),
    }


def share(rows: int, rank: int, world_size: int) -> Rows:
    """The rows of a rank: as even as can be, the first ranks have one more."""
    each, more = divmod(rows, world_size)
    first = rank * each + min(rank, more)
    return first, first + each + (rank < more)


def cuts(rows: int, case: Reshard) -> list[Rows]:
    """The rows of each rank that has saved."""
    if case.seed is not None:
        dice = random.Random(f"{case.seed} {rows}")
        marks = [0, *sorted(dice.choices(range(rows + 1), k=case.saved - 1)), rows]
        return list(itertools.pairwise(marks))
    if not case.uneven:
        return [share(rows, rank, case.saved) for rank in range(case.saved)]
    # Rank 1 has nothing; the others have parts that grow.
    marks = [rows * k * k // (case.saved - 1) ** 2 for k in range(case.saved)]
    pairs = list(itertools.pairwise(marks))
    return [pairs[0], (marks[1], marks[1]), *pairs[1:]]


def make_store(whole: dict[str, torch.Tensor], case: Reshard) -> Store:
    """What the ranks have written: raw bytes of their rows, one tensor after the other, and an index."""
    import torch

    indices: dict[str, dict[str, Any]] = {}
    contents: dict[str, bytes] = {}
    for rank in range(case.saved):
        content, index = b"head" * (rank % 3), {}
        for name, tensor in whole.items():
            content += b"gap" * case.gaps
            first, last = cuts(len(tensor), case)[rank]
            part = tensor[first:last].contiguous()
            dtype = str(tensor.dtype).removeprefix("torch.")
            index[name] = {"rows": [first, last], "shape": list(tensor.shape), "dtype": dtype, "offset": len(content)}
            content += part.reshape(-1).view(torch.uint8).numpy().tobytes() if part.numel() else b""
        indices[case.file(rank)], contents[case.file(rank)] = index, content
    order = sorted(contents)  # as text: shard-10 comes before shard-2
    order = order[1:] + order[:1]
    return Store({name: indices[name] for name in order}, {name: contents[name] for name in order})
