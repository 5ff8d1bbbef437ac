"""What M ranks load from a sharded checkpoint of N ranks: right rows, no byte too many, and verdicts on that."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from utils.checks.compare import how_far
from utils.checks.verdicts import Wrong
from utils.training.sharded_store import Reshard, Store, cuts, make_store, share, tensors

if TYPE_CHECKING:
    import torch

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


class _JudgedStore(Store):
    """Says what it refuses as a check does."""

    def read(self, file: str, offset: int, size: int) -> bytearray:
        try:
            return super().read(file, offset, size)
        except EOFError:
            raise Wrong(
                "the loader reads beyond the end of a file",
                measured=f"bytes {offset:,} to {offset + size:,} of {file}",
                expected=f"it has {len(self._contents[file]):,}",
            ) from None


def needed(whole: dict[str, torch.Tensor], case: Reshard, rank: int) -> dict[str, dict[str, int]]:
    """For each file that holds rows of this rank: its bytes, and the number of pieces (one per tensor)."""
    found: dict[str, dict[str, int]] = {}
    for tensor in whole.values():
        row = tensor.element_size() * math.prod(tensor.shape[1:])
        mine = share(len(tensor), rank, case.loaded)
        for saver, cut in enumerate(cuts(len(tensor), case)):
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
            store = _JudgedStore(**vars(make_store(whole, case)))
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
