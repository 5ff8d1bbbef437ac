"""``with simgpu.profile() as prof:`` records what happens inside, on simulated time."""

from __future__ import annotations

import json
from collections.abc import Hashable, MutableSequence, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simgpu import install
from simgpu.cluster import Cluster, current
from simgpu.memory.allocator import KINDS, Change, Label
from simgpu.memory.caching import CachingAllocator
from simgpu.report import trace
from simgpu.time.phases import COMMUNICATION
from simgpu.time.work import Work

if TYPE_CHECKING:
    from simgpu.memory.pictures import MemorySeries
    from utils.draw import Picture
    from utils.draw.timeline import Span


@dataclass(frozen=True)
class TraceEvent:
    """One operator, copy or collective, in simulated seconds since the profile began.

    Args:
        name: the operator ("addmm"), "copy", or the collective ("all-reduce").
        phase: "forward", "backward", "optimizer" or "communication".
        place: "GPU 0", "GPU 0 → GPU 1", "host → GPU 0" or "collective".
        gpus: the GPUs that take part.
        start, end: on the device.
        launched: when the host had launched it.
        host: the host lane that launched it: "host", "thread, GPU 1" or "backward, GPU 1".
        region: the name given by ``simgpu.region``.
        flops: floating-point operations.
        nbytes: bytes read and written, or sent.
        how: what NCCL would choose for a collective between ranks: "ring LL128", "switch Simple".
        dtype: what a product multiplies ("bfloat16", "tf32" where it takes float32 for that), or a collective sends.
        ready: when this rank was ready for a collective: NCCL's kernel is on the GPU from then on, and waits until the
            last rank is, too. So it takes long on all ranks but the late one.
    """

    name: str
    phase: str
    place: str
    gpus: tuple[int, ...]
    start: float
    end: float
    launched: float
    launch_s: float
    host: str
    region: str
    flops: int
    nbytes: int
    how: str = ""
    ready: float | None = None
    dtype: str = ""

    @property
    def seconds(self) -> float:
        """How long it took on the device."""
        return self.end - self.start


class Profile:
    """What happened between the beginning and the end of ``with simgpu.profile()``.

    Both ends wait for all GPUs, so that nothing from before or after is counted.
    """

    def __init__(self) -> None:
        self.cluster: Cluster = current()
        self.elapsed = 0.0
        """Simulated seconds from the beginning to the end, all GPUs finished."""
        self._work: MutableSequence[Work] = []
        self._memory: list[list[Change]] = [[] for _ in self.cluster.gpus]
        self._began = 0.0
        self._held: list[dict[int, tuple[Label, int]]] = []
        self._events: list[TraceEvent] | None = None

    def __enter__(self) -> Profile:
        cluster = self.cluster
        install.name_stages()
        self._wait()
        self._began = cluster.now()
        cluster.clock.watchers.append(self._work)
        for gpu, record in zip(cluster.gpus, self._memory, strict=True):
            self._held.append(gpu.memory.living.copy())
            gpu.memory.recorders.append(record)
        return self

    def __exit__(self, *exc: object) -> None:
        cluster = self.cluster
        self._wait()
        cluster.clock.watchers = [each for each in cluster.clock.watchers if each is not self._work]
        for gpu, record in zip(cluster.gpus, self._memory, strict=True):
            gpu.memory.recorders = [each for each in gpu.memory.recorders if each is not record]
        self.elapsed = cluster.now() - self._began

    def _wait(self) -> None:
        self.cluster.synchronize()

    # --- Time -----------------------------------------------------------------------------------------------

    @property
    def events(self) -> list[TraceEvent]:
        """Everything that ran, in the order of its start."""
        if self._events is None or len(self._events) < len(self._work):  # it may still be running
            t = self._began
            events = [
                TraceEvent(
                    work.name, work.phase, work.place, work.gpus, work.start - t, work.end - t, work.launched - t,
                    work.launch_s, work.lane, work.region, work.flops, work.nbytes, work.how,
                    None if work.ready is None else work.ready - t, work.dtype,
                )
                for work in self._work
            ]  # fmt: skip
            self._events = sorted(events, key=lambda event: (event.start, event.gpus, event.end))
        return self._events

    def busy(self, gpu: int) -> float:
        """Seconds in which GPU ``gpu`` computed (copies are not counted)."""
        return sum(event.seconds for event in self.events if event.phase != COMMUNICATION and event.gpus == (gpu,))

    @property
    def flops(self) -> int:
        """Floating-point operations that were counted: products, convolutions and attention, on all own GPUs."""
        return sum(work.flops for work in self._work)

    def mfu(self, model_flops: float | None = None) -> float:
        """Model FLOPs utilisation (PaLM, 2022): the part of its GPUs' dense peak that the model used, 0 to 1.

        The peak is that of the numbers multiplied (of bfloat16, TF32, … each for its own operations), times
        ``elapsed``, times this process's GPUs.

        Args:
            model_flops: what the model needs of these GPUs in the profile, nothing computed twice: as a rule
                6 · parameters · tokens for a training step, and on ranks this rank's share of it. None: what was
                counted, recomputed activations included, so this is the *hardware's* utilisation (HFU), not below MFU.

        Raises:
            RuntimeError: the profile has not ended, or no operation was counted.
        """
        if not (self.elapsed and self.flops):
            raise RuntimeError("mfu needs a profile that has ended and counted products: read it after its `with`")
        counted = [(work, self.cluster.gpus[work.gpus[0]].model) for work in self._work if work.flops]
        at_peak = sum(work.flops / kind.peak_flops(work.dtype) for work, kind in counted)
        share = at_peak / self.elapsed / len(self.cluster.own)
        return share if model_flops is None else share * model_flops / self.flops

    def transferred(self, source: int | None = None, target: int | None = None) -> int:
        """Bytes copied from GPU to GPU: from ``source`` (None: any) to ``target`` (None: any). No collectives."""
        total = 0
        for event in self.events:
            if event.phase == COMMUNICATION and len(event.gpus) == 2 and event.place != "collective":
                total += event.nbytes * (source in (None, event.gpus[0]) and target in (None, event.gpus[1]))
        return total

    def spans(self, *, links: bool = True, host: bool = True) -> list[Span]:
        """The events as spans for ``draw.timeline``."""
        from utils.draw.timeline import Span

        spans: list[Span] = []
        for event in self.events:
            if event.place == "collective":
                places = [_together(event.gpus)] if links else []
                label = event.region or event.name
            else:
                places = [event.place] if links or event.phase != COMMUNICATION else []
                label = event.region or (event.name if "↔" in event.place else "")
            spans += [Span(place, event.start, event.end, event.phase, label) for place in places]
            if host and event.launch_s:
                spans.append(Span(event.host, event.launched - event.launch_s, event.launched, "launch", ""))
        return spans

    def timeline(self, *, links: bool = True, host: bool = True, title: str = "", width: int = 900) -> Picture:
        """A picture: one lane for each GPU, one for each link that was used, one for each host thread.

        Args:
            links: show copies and collectives in lanes of their own.
            host: show when host threads launch operators.
            title: the sentence that the picture shows.
            width: pixels.
        """
        from utils import draw

        spans = self.spans(links=links, host=host)
        lanes = [gpu.name for gpu in self.cluster.own]
        lanes += sorted({span.lane for span in spans} - set(lanes), key=lambda lane: (_rank(lane), lane))
        return draw.timeline(
            spans, lanes=lanes, start=0.0, end=self.elapsed, title=title, caption=self.caption, width=width
        )

    def export_trace(self, path: str | Path, format: str = "kineto") -> None:
        """Write what torch.profiler writes for CUDA and NCCL, for ui.perfetto.dev, HolisticTraceAnalysis and the like.

        Operators, launches and kernels, with arrows between them; one time for all ranks.

        Args:
            path: of the file. "{rank}" in it stands for this rank's number; in a folder (there already, or with "/" at
                its end) the file is "rank0.json", "rank1.json", ….
            format: "kineto"; there is no other.
        """
        if format != "kineto":
            raise ValueError(f'format must be "kineto", which ui.perfetto.dev reads too, not {format!r}')
        rank = self.cluster.rank_number
        file = Path(str(path).replace("{rank}", str(rank)))
        if file.is_dir() or str(path).endswith("/"):
            file.mkdir(parents=True, exist_ok=True)
            file /= f"rank{rank}.json"
        content = trace.content(self.cluster, list(self._work), self._began, self.elapsed)
        file.write_text(json.dumps(content), encoding="utf-8")

    @property
    def caption(self) -> str:
        """What was simulated."""
        return f"simulated: {self.cluster.description}"

    # --- Memory ---------------------------------------------------------------------------------------------

    def _history(self, gpu: int) -> list[tuple[float, dict[str, int]]]:
        """Time and bytes by kind after every change, the state at the beginning first."""
        held = dict.fromkeys(KINDS, 0)
        for label, nbytes in self._held[gpu].values():
            held[label.kind] += nbytes
        history = [(0.0, dict(held))]
        time = 0.0
        for change in self._memory[gpu]:
            held[change.label.kind] += change.nbytes
            time = max(time, change.time - self._began)
            history.append((time, dict(held)))
        history.append((max(time, self.elapsed), dict(held)))
        return history

    def peak_memory(self, gpu: int = 0) -> int:
        """The most bytes that GPU ``gpu`` held."""
        return max(sum(held.values()) for _, held in self._history(gpu))

    def peak_reserved(self, gpu: int = 0, expandable: bool = False) -> int:
        """The most bytes that torch's caching allocator would have reserved for GPU ``gpu``, if begun with the profile.

        Args:
            expandable: as with ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``.
        """
        allocator = CachingAllocator(expandable)
        homes: dict[int, Hashable] = {}
        for address, (_, nbytes) in self._held[gpu].items():
            if nbytes:
                allocator.take(address, nbytes, self.cluster.gpus[gpu].default_stream)
        for change in self._memory[gpu]:
            if change.nbytes > 0:
                homes[change.address] = change.user
                allocator.take(change.address, change.nbytes, change.user, change.host)
            elif change.nbytes:
                home = homes.pop(change.address, self.cluster.gpus[gpu].default_stream)
                until = max((stamp.time for stamp in change.after if stamp.stream is not home), default=None)
                allocator.give_back(change.address, until)
        return allocator.peak

    def memory_at_peak(self, gpu: int = 0) -> dict[str, int]:
        """What GPU ``gpu`` held when it held most: bytes by kind."""
        return max((held for _, held in self._history(gpu)), key=lambda held: sum(held.values()))

    def memory_series(self, gpus: Sequence[int] | None = None) -> list[MemorySeries]:
        """Bytes by kind over time, for ``memory_over_time``."""
        from simgpu.memory.pictures import MemorySeries

        series = []
        for gpu in [gpu.index for gpu in self.cluster.own] if gpus is None else gpus:
            history = self._history(gpu)
            by_kind = {kind: [held[kind] for _, held in history] for kind in KINDS}
            series.append(MemorySeries(f"GPU {gpu}", [time for time, _ in history], by_kind))
        return series

    def memory(self, *, at: str = "time", title: str = "") -> Picture:
        """A picture of what each GPU's memory held.

        Args:
            at: "time": over time; "peak": at each GPU's peak.
        """
        from simgpu.memory import pictures as memory_pictures

        if at == "time":
            return memory_pictures.memory_over_time(self.memory_series(), title=title, caption=self.caption)
        if at != "peak":
            raise ValueError(f'at must be "time" or "peak", not {at!r}')
        peaks = {gpu.name: self.memory_at_peak(gpu.index) for gpu in self.cluster.own}
        return memory_pictures.memory_at_peak(peaks, title=title, caption=self.caption)


def _together(gpus: tuple[int, ...]) -> str:
    """The lane of a collective: "GPUs 0–3 ↔"."""
    if gpus == tuple(range(gpus[0], gpus[0] + len(gpus))):
        return f"GPUs {gpus[0]}–{gpus[-1]} ↔"
    return f"GPUs {', '.join(map(str, gpus))} ↔"


def _rank(lane: str) -> int:
    """Links first, then the host's main thread, then its other threads."""
    if "→" in lane or "↔" in lane:
        return 0
    return 1 if lane == "host" else 2 if lane.startswith("thread") else 3


def profile() -> Profile:
    """Record what happens on the simulated GPUs: ``with simgpu.profile() as prof: …``."""
    return Profile()
