"""What happened in an elastic run: scripts/elastic_steps.py writes it down, and here it becomes a picture."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from utils.draw.picture import Picture

_FILES = "events-*.jsonl"


@dataclass(frozen=True)
class Event:
    """Something that a rank did.

    Args:
        seconds: when: since 1970 as written down, since the first event as read back.
        what: "started" (its process) or "step" (it has finished one).
        machine: the name of the machine.
        rank, world_size: as they were then.
        step: how many steps were done.
    """

    seconds: float
    what: str
    machine: str
    rank: int
    world_size: int
    step: int


class EventLog:
    """Where one process writes its events down, a line each, so that nothing is lost when it is killed."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / _FILES.replace("*", str(os.getpid()))

    def write(self, event: Event) -> None:
        with open(self._file, "a") as file:
            file.write(json.dumps(asdict(event)) + "\n")


def read(folder: str | Path) -> list[list[Event]]:
    """The events of each process, in order; processes in the order of their starts. The first starts at 0 seconds."""
    files = [file.read_text().splitlines() for file in Path(folder).glob(_FILES)]
    lives = [[Event(**json.loads(line)) for line in lines] for lines in files]
    lives.sort(key=lambda life: life[0].seconds)
    if not lives:
        raise FileNotFoundError("no rank has written anything down: did the run start?")
    first = lives[0][0].seconds
    return [[replace(event, seconds=event.seconds - first) for event in life] for life in lives]


def timeline(lives: Sequence[Sequence[Event]]) -> Picture:
    """A lane for each machine: when its worker started, when it trained in a world of which size, when agents met anew.

    Args:
        lives: as from ``read``.
    """
    from utils import draw

    end = max(event.seconds for life in lives for event in life)
    spans = []
    for life in lives:
        lane, size = f"machine {life[0].machine}", life[0].world_size
        steps = [event for event in life if event.what == "step"]
        ready = steps[0].seconds if steps else end
        spans.append(draw.Span(lane, life[0].seconds, ready, "launch", "start"))
        if steps:
            spans.append(draw.Span(lane, ready, steps[-1].seconds, "compute", str(size)))
    lanes = sorted({span.lane for span in spans})
    for lane in lanes:
        of_lane = [life for life in lives if f"machine {life[0].machine}" == lane]
        for life, following in pairwise(of_lane):
            spans.append(draw.Span(lane, life[-1].seconds, following[0].seconds, "idle", "meet"))
        if of_lane[-1][-1].seconds < lives[-1][0].seconds:  # others were started after it
            spans.append(draw.Span(lane, of_lane[-1][-1].seconds, end, "error", "lost"))
    # In words without times: they differ from run to run.
    worlds = [f"machine {life[0].machine} is rank {life[0].rank} of {life[0].world_size}" for life in lives]
    done = max(event.step for life in lives for event in life)
    return draw.timeline(
        spans,
        title="An elastic run of two machines; in blue, the number of ranks that train",
        caption=f"measured on this machine: {done} steps were done",
        lanes=lanes,
        start=0.0,
        end=end,
        alt=f"An elastic run of two machines. Workers in the order of their starts: {'; '.join(worlds)}.",
    )
