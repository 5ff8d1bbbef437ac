"""Lab 08's sharded checkpoints: files of N ranks that count what is read, and verdicts on what M ranks get."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from utils.checks.compare import how_far
from utils.checks.verdicts import Wrong

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
            raise Wrong(
                "the loader reads beyond the end of a file",
                measured=f"bytes {offset:,} to {offset + size:,} of {file}",
                expected=f"it has {length:,}",
            )
        self.reads.append((file, offset, size))
        return bytearray(self._contents[file][offset : offset + size])


@dataclass(frozen=True)
class Reshard:
    """Saved by ``saved`` ranks, loaded by ``loaded``; ``uneven``: cut at odd places, with empty shards."""

    saved: int
    loaded: int
    uneven: bool = False

    def __repr__(self) -> str:
        return f"{self.saved} → {self.loaded} ranks" + (", cut unevenly" if self.uneven else "")


CASES = [
    Reshard(4, 2),
    Reshard(2, 3),
    Reshard(4, 3),
    Reshard(1, 4),
    Reshard(3, 5),
    Reshard(4, 1),
    Reshard(11, 2),
    Reshard(2, 9),
    Reshard(3, 3),
    Reshard(4, 3, True),
    Reshard(5, 2, True),
]


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


def _cuts(rows: int, case: Reshard) -> list[Rows]:
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
            first, last = _cuts(len(tensor), case)[rank]
            part = tensor[first:last].contiguous()
            dtype = str(tensor.dtype).removeprefix("torch.")
            index[name] = {"rows": [first, last], "shape": list(tensor.shape), "dtype": dtype, "offset": len(content)}
            content += part.reshape(-1).view(torch.uint8).numpy().tobytes() if part.numel() else b""
        indices[f"shard-{rank}"], contents[f"shard-{rank}"] = index, content
    order = sorted(contents)  # as text: shard-10 comes before shard-2
    order = order[1:] + order[:1]
    return Store({name: indices[name] for name in order}, {name: contents[name] for name in order})


def needed(whole: dict[str, torch.Tensor], case: Reshard, rank: int) -> dict[str, dict[str, int]]:
    """For each file that holds rows of this rank: its bytes, and the number of pieces (one per tensor)."""
    found: dict[str, dict[str, int]] = {}
    for tensor in whole.values():
        row = tensor.element_size() * math.prod(tensor.shape[1:])
        mine = share(len(tensor), rank, case.loaded)
        for saver, cut in enumerate(_cuts(len(tensor), case)):
            rows = min(mine[1], cut[1]) - max(mine[0], cut[0])
            if rows > 0:
                facts = found.setdefault(f"shard-{saver}", {"bytes": 0, "pieces": 0})
                facts["bytes"] += rows * row
                facts["pieces"] += 1
    return found


def reshards(load: Any, cases: list[Reshard]) -> list[list[dict[str, Any]]]:
    """For each case and rank: what the answer gives, and what it reads."""
    whole, found = tensors(), []
    for case in cases:
        per_rank = []
        for rank in range(case.loaded):
            store = make_store(whole, case)
            try:
                result = load(store, rank, case.loaded)
            except Wrong:
                raise
            except BaseException as error:
                if not hasattr(error, "record") or error.record["kind"] != "wrong":
                    raise
                error.record["sentence"] += f" This was for {case}, rank {rank}."
                raise
            per_rank.append({"result": result, "reads": store.reads, "asked": store.asked})
        found.append(per_rank)
    return found


# --- judging ---------------------------------------------------------------------------------------------------


def judge_reshard(case: Reshard, per_rank: list[dict[str, Any]]) -> dict[str, int]:
    """Right values and types, and no byte read that is not needed; returns bytes and reads of all ranks."""
    whole = tensors()
    for rank, facts in enumerate(per_rank):
        _judge_values(f"{case}, rank {rank}", case, rank, facts["result"], whole)
    bytes_read = reads = 0
    for rank, facts in enumerate(per_rank):
        wanted = needed(whole, case, rank)
        _judge_reads(f"{case}, rank {rank}", facts, wanted)
        bytes_read += sum(size for _, _, size in facts["reads"])
        reads += len(facts["reads"])
    return {"bytes": bytes_read, "reads": reads}


def _judge_values(where: str, case: Reshard, rank: int, result: Any, whole: dict[str, torch.Tensor]) -> None:
    import torch

    if not isinstance(result, dict):
        raise Wrong("load returns a dictionary from names to tensors", measured=type(result).__name__)
    missing = [name for name in whole if name not in result]
    if missing:
        raise Wrong(f"{where}: {', '.join(missing)} missing: a rank without rows gets a tensor with none.")
    for name, tensor in whole.items():
        first, last = share(len(tensor), rank, case.loaded)
        right, mine = tensor[first:last], result[name]
        what = f"{where}: {name}"
        if not isinstance(mine, torch.Tensor):
            raise Wrong(f"{what} is not a tensor", measured=type(mine).__name__)
        if mine.dtype != right.dtype:
            raise Wrong(f"{what} has another data type", measured=str(mine.dtype), expected=str(right.dtype))
        if mine.shape[1:] != right.shape[1:] or mine.dim() != right.dim():
            raise Wrong(f"{what} has another shape", measured=list(mine.shape), expected=list(right.shape))
        if len(mine) != len(right):
            raise Wrong(
                f"{what} has the wrong number of rows: shares differ by at most one, and the first ranks have one more",
                measured=len(mine),
                expected=f"{len(right)} of {len(tensor)}",
            )
        if torch.equal(mine, right):
            continue
        if sorted(mine.reshape(-1).tolist()) == sorted(right.reshape(-1).tolist()):
            raise Wrong(f"{what} has the right rows in the wrong order: sort by rows, not by the names of files.")
        raise Wrong(f"{what} has the wrong rows: {how_far(mine, right)}", expected=f"rows {first} to {last - 1}")


def _judge_reads(where: str, facts: dict[str, Any], wanted: dict[str, dict[str, int]]) -> None:
    asked = facts["asked"]
    if len(asked) > len(set(asked)):
        raise Wrong(f"{where}: an index is read more than once", measured=len(asked), expected=len(set(asked)))
    total, right = sum(size for _, _, size in facts["reads"]), sum(one["bytes"] for one in wanted.values())
    strangers = sorted({file for file, _, _ in facts["reads"]} - set(wanted))
    if strangers:
        raise Wrong(
            f"{where}: files are read that hold no row of this rank",
            measured=f"{len(strangers)} of them ({', '.join(strangers[:3])}), {total:,} bytes in all",
            expected=f"{', '.join(wanted) or 'none'}, {right:,} bytes",
        )
    if total != right:
        raise Wrong(
            f"{where}: more is read than this rank needs: begin and end with its own rows, not with those of the file",
            measured=f"{total:,} bytes",
            expected=f"{right:,}",
        )
    pieces = sum(one["pieces"] for one in wanted.values())
    if len(facts["reads"]) > pieces:
        raise Wrong(
            f"{where}: too many small reads: the rows of a tensor lie side by side in a file",
            measured=len(facts["reads"]),
            expected=f"at most {pieces}",
        )
