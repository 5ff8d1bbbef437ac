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


def timeline(lives: Sequence[Sequence[Event]], until: float | None = None) -> Picture:
    """A lane for each machine: when its worker started, when it trained in a world of which size, when agents met anew.

    Args:
        lives: as from ``read``.
        until: draw only what has happened until then (seconds); the axis stays the same.
    """
    from utils import draw

    end = max(event.seconds for life in lives for event in life)
    now = end if until is None else until
    spans = []
    for life in lives:
        lane, size = f"machine {life[0].machine}", life[0].world_size
        steps = [event for event in life if event.what == "step"]
        ready = steps[0].seconds if steps else end
        spans.append(draw.Span(lane, life[0].seconds, ready, "launch", "starts"))
        if steps:
            label = f"{size} rank{'s' if size > 1 else ''}"
            spans.append(draw.Span(lane, ready, steps[-1].seconds, "compute", label))
    lanes = sorted({span.lane for span in spans})
    for lane in lanes:
        of_lane = [life for life in lives if f"machine {life[0].machine}" == lane]
        for life, following in pairwise(of_lane):
            spans.append(draw.Span(lane, life[-1].seconds, following[0].seconds, "idle", "all meet"))
        if of_lane[-1][-1].seconds < lives[-1][0].seconds:  # others were started after it
            spans.append(draw.Span(lane, of_lane[-1][-1].seconds, end, "error", "lost"))
    seen = [replace(span, end=min(span.end, now)) for span in spans if span.start < now]
    # In words without times: they differ from run to run.
    worlds = [f"machine {life[0].machine} is rank {life[0].rank} of {life[0].world_size}" for life in lives]
    caption = f"measured on this machine; after {now:.1f} s: {sentence(lives, now)}"
    return draw.timeline(
        seen,
        title="An elastic run of two machines",
        caption=caption,
        lanes=lanes,
        start=0.0,
        end=end,
        alt=f"An elastic run of two machines. Workers in the order of their starts: {'; '.join(worlds)}.",
    )


def sentence(lives: Sequence[Sequence[Event]], at: float) -> str:
    """Who trains at this moment, and how far they are."""
    now = [life for life in lives if life[0].seconds <= at <= life[-1].seconds]
    done = max((event.step for life in lives for event in life if event.seconds <= at), default=0)
    training = [life for life in now if len(life) > 1 and life[1].seconds <= at]
    who = " and ".join(sorted(life[0].machine for life in training))
    train = f"{who} train{'s' if len(training) == 1 else ''}" if who else "nobody trains"
    return f"{train}, {done} steps are done"
