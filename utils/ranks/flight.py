"""Collectives that were begun and have not ended, from torch's flight recorder.

NCCL's calls return at once, and so do those with ``async_op=True`` and DistributedDataParallel's own: the rank waits
later, in a line that names no collective.
"""

from __future__ import annotations

import pickle
import re
import sys
from typing import Any

_POINT_TO_POINT = re.compile(r"(?:send|recv) (\d+)(?:->|<-)(\d+)")


def unfinished_collective() -> dict[str, Any]:
    """The oldest collective of this rank that has not ended: its name, the ranks of its group or its partner.

    Empty if there is none, or nobody knows.
    """
    try:
        from torch._C import _distributed_c10d as c10d

        for recorder in ("_dump_nccl_trace", "_dump_fr_trace"):  # NCCL's own, and that of the other backends
            dump = getattr(c10d, recorder, None)
            entries = pickle.loads(dump(True, False, False))["entries"] if dump else []
            waiting = [entry for entry in entries if not entry["retired"] and entry["state"] != "completed"]
            if waiting:
                return _described(min(waiting, key=lambda entry: entry["time_created_ns"]))
    except Exception:
        pass  # an aid only, and torch's format may change
    return {}


def _described(entry: dict[str, Any]) -> dict[str, Any]:
    name = entry["profiling_name"].split(":", 1)[-1]
    groups = sys.modules["torch.distributed"].distributed_c10d._world.pg_names
    group = next((group for group, known in groups.items() if known == entry["process_group"][0]), None)
    ranks = list(sys.modules["torch.distributed"].get_process_group_ranks(group)) if group is not None else None
    partners = _POINT_TO_POINT.match(name)
    if partners is None:
        return {"begun": name, "ranks": ranks}
    peer = int(partners[2])
    return {"begun": name.split()[0], "peer": ranks[peer] if ranks else peer}
