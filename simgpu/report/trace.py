"""A profile as a file for chrome://tracing and ui.perfetto.dev: a row for each stream, link and host thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from simgpu.time.work import Work

if TYPE_CHECKING:
    from simgpu.cluster import Cluster

_ROW_NAMES = ("default stream", "communication stream", "copy stream")


def content(cluster: Cluster, work: Iterable[Work], began: float) -> dict[str, Any]:
    """What has run since ``began``, in simulated seconds. (A GPU is a "process" there, a stream a "thread".)"""
    return {
        "traceEvents": _events(cluster, work, began),
        "displayTimeUnit": "ms",
        "otherData": {"simulated": cluster.description},
    }


def _events(cluster: Cluster, work: Iterable[Work], began: float) -> list[dict[str, Any]]:
    rows: dict[tuple[str, str], tuple[int, int]] = {}
    groups: dict[str, int] = {}
    first = 10_000 * cluster.rank_number  # so that the files of several ranks can be put together

    def row(group: str, name: str) -> dict[str, int]:
        if (group, name) not in rows:
            number = groups.setdefault(group, first + len(groups))
            rows[group, name] = number, sum(known == group for known, _ in rows)
        pid, tid = rows[group, name]
        return {"pid": pid, "tid": tid}

    for gpu in cluster.own:
        row(gpu.name, _ROW_NAMES[0])
    events = []
    for each in work:
        named = {"name": each.name, "cat": each.phase, "args": about(each)}
        places = [row(f"GPU {gpu}", name) for gpu, name in _streams(cluster, each)]
        if not each.place.startswith("GPU") or "→" in each.place:
            places.append(row("links", each.place))
        events += [span(named, place, each.start - began, each.end - began) for place in places]
        if each.launch_s:
            host = row("host", each.lane)
            events.append(
                span({**named, "cat": "launch"}, host, each.launched - each.launch_s - began, each.launched - began)
            )
    names = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"{cluster.prefix}{group}"}}
        for group, pid in groups.items()
    ]
    names += [
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
        for (_, name), (pid, tid) in rows.items()
    ]
    return [*names, *sorted(events, key=lambda event: event["ts"])]


def about(work: Work) -> dict[str, Any]:
    """What is known of it beside its times."""
    known = {"phase": work.phase, "bytes": work.nbytes, "flop": work.flops, "how": work.how, "region": work.region}
    return {name: value for name, value in known.items() if value}


def span(named: dict[str, Any], row: dict[str, int], start: float, end: float) -> dict[str, Any]:
    """An event with a beginning and an end, in seconds; files have microseconds."""
    return {**named, **row, "ph": "X", "ts": round(start * 1e6, 4), "dur": round((end - start) * 1e6, 4)}


def _streams(cluster: Cluster, work: Work) -> list[tuple[int, str]]:
    found = []
    for gpu in work.gpus:
        for number, stream in enumerate(cluster.gpus[gpu].streams):
            if stream in work.queues:
                found.append((gpu, _ROW_NAMES[number] if number < len(_ROW_NAMES) else f"stream {number}"))
    return found
