"""A batch scattered over GPUs: where its rows land, how they get there, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from utils.checks.data_parallel_internals.gpus import (
    cluster_of,
    moved,
    not_through_the_host,
    place_of,
    rows_on,
    total_bytes,
)
from utils.checks.verdicts import Wrong

if TYPE_CHECKING:
    pass


def scattered(scatter_batch: Any, rows: int, gpus: Sequence[int], start: str) -> dict[str, Any]:
    """Scatter a batch of ``rows`` rows of two numbers (16 bytes) that starts on the host or on the first GPU.

    Returns:
        ``kind``: of what came back; ``parts``: for each part its place and its rows; ``moved``: bytes by link.
    """
    import torch

    from utils import simgpu

    everything = cluster_of(4)
    devices = [everything[gpu] for gpu in gpus]
    batch = torch.arange(rows * 2, dtype=torch.float64).view(rows, 2)
    batch = batch if start == "host" else batch.to(devices[0])
    with simgpu.profile() as profile:
        parts = scatter_batch(batch, list(devices))
    tensors = isinstance(parts, list | tuple) and all(isinstance(part, torch.Tensor) for part in parts)
    return {
        "kind": type(parts).__name__ if not isinstance(parts, list | tuple) else "list" if tensors else "other",
        "parts": [(place_of(part), part.detach().cpu().tolist()) for part in parts] if tensors else [],
        "moved": moved(profile),
    }


ROW_BYTES = 16
BATCHES = tuple(
    (rows, gpus, start)
    for rows, gpus in (
        (8, (0, 1, 2, 3)),
        (10, (0, 1, 2, 3)),
        (7, (0, 1, 2)),
        (5, (0, 1, 2, 3)),
        (2, (0, 1, 2, 3)),
        (1, (0, 1)),
        (9, (2, 0, 1)),
    )
    for start in ("host", "first GPU")
)


def all_batches(scatter_batch: Any) -> list[Any]:
    return [scattered(scatter_batch, *batch) for batch in BATCHES]


def judge_parts(rows: int, gpus: tuple[int, ...], found: dict[str, Any]) -> None:
    case = rows_on(rows, len(gpus))
    if found["kind"] != "list":
        raise Wrong(f"scatter_batch returns a list of tensors, not {found['kind']}. See {case}.")
    parts = [part for _, part in found["parts"]]
    sizes = [len(part) for part in parts]
    got = [row for part in parts for row in part]
    whole = [[2.0 * row, 2.0 * row + 1] for row in range(rows)]
    if 0 in sizes:
        raise Wrong(f"a GPU that gets no rows gets no part either. See {case}", measured=sizes)
    if any(len(row) != 2 for row in got):
        raise Wrong(f"split the rows (dimension 0), not the columns. See {case}")
    if missing := [row for row, values in enumerate(whole) if values not in got]:
        raise Wrong(f"rows are lost: {missing} of {case}, which do not divide evenly", measured=sizes)
    if len(got) > rows:
        raise Wrong(f"rows are on more than one GPU. See {case}", measured=sizes, expected=f"{rows} rows in all")
    if got != whole:
        raise Wrong(
            f"the rows are out of order: neighbours stay together, the first rows go to the first GPU. See {case}",
            measured=[[int(row[0]) // 2 for row in part] for part in parts],
        )
    if len(parts) > len(gpus):
        raise Wrong(f"there are more parts than GPUs: {case}", measured=sizes)
    most = math.ceil(rows / len(gpus))
    if max(sizes) > most:
        raise Wrong(
            f"the rows are not shared out evenly: the fullest GPU sets the pace. See {case}",
            measured=sizes,
            expected=f"at most {most} on each",
        )
    places = [place for place, _ in found["parts"]]
    if places != (right := [f"GPU {gpu}" for gpu in gpus[: len(parts)]]):
        where = "still on the host" if set(places) == {"host"} else "on the wrong GPU"
        raise Wrong(f"a part is {where}: part i belongs on devices[i]. See {case}", measured=places, expected=right)


def judge_route(rows: int, gpus: tuple[int, ...], start: str, found: dict[str, Any]) -> None:
    source = "host" if start == "host" else f"GPU {gpus[0]}"
    case, moved = f"{rows_on(rows, len(gpus))}, with a batch that starts on the {start}", found["moved"]
    right = {f"{source} → {place}": ROW_BYTES * len(part) for place, part in found["parts"] if place != source}
    if moved == right:
        return
    if start != "host":
        not_through_the_host(moved, "rows go")
    detours = [link for link in moved if not link.startswith(source)]
    if detours:
        raise Wrong(f"rows move twice, {detours[0]} too: send each part straight from where it is. See {case}")
    raise Wrong(
        f"more than its own rows go to a GPU: split first, then move. See {case}",
        measured=f"{total_bytes(moved.items()):,} bytes",
        expected=f"{total_bytes(right.items()):,} bytes",
    )
