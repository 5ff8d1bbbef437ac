"""When does what happen? Deterministic clocks for hosts, GPUs and links.

Operators are computed at once (or only their shapes are); *when* they would have run on real GPUs is worked
out here, in three steps that follow CUDA:

1. A host lane (a thread) launches the operator. That takes ``launch_s``: first Python's part, which holds the GIL, so
   that threads of one process take turns in it; then torch's and the driver's, for which torch lets go of the GIL.
   Autograd's backward threads (PyTorch has one for each GPU) are C++ and do not need it.
2. The operator joins the end of its stream. A stream runs one operator after the other.
3. It starts when the host has launched it, the stream is free, and what it reads has been written.

While only one lane is at work its operators are placed at once. When several threads work at the same time, as
in ``parallel_apply``, real threads would race. So each thread's operators wait in a queue, and when the threads
have ended the queues are merged in the order of simulated time. The same program so gives the same timeline.
"""

from __future__ import annotations

import heapq
import re
import threading
from collections.abc import Callable, Iterable, Iterator, MutableSequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from simgpu._torch import current_graph_task
from simgpu.time.phases import in_backward
from simgpu.time.work import Lane, Stamp, Work

Queued = Work | Stamp | Callable[[Lane], object]
"""What waits in a lane for its turn."""


@dataclass(slots=True)
class _Backward:
    """A call of backward: who called, and one lane for each GPU that it has used so far."""

    caller: Lane
    lanes: dict[int, Lane] = field(default_factory=dict)


def _by_number(name: str) -> tuple:
    """Sort "Thread-10" after "Thread-9"."""
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name))


class Clock:
    """All lanes of one process, and the order in which their work is placed.

    Args:
        launch_s: seconds to launch an operator from Python.
        gil_s: seconds of those in which the thread holds the GIL; 0: see what the GIL costs.
        backward_launch_s: seconds to launch one from autograd's C++ threads.
    """

    def __init__(self, launch_s: float, gil_s: float, backward_launch_s: float) -> None:
        self.launch_s = launch_s
        self.gil_s = gil_s
        self.backward_launch_s = backward_launch_s
        self.main = Lane("host", 0.0, ())
        self.children: list[Lane] = []
        self.gil_free_at = 0.0
        self.watchers: list[MutableSequence[Work]] = []  # one for each running profile
        self._backwards: dict[int, _Backward] = {}
        self._callers: list[Lane] = []
        self._local = threading.local()
        self._lock = threading.RLock()

    # --- Which lane is this? --------------------------------------------------------------------------------

    def lane(self, gpu: int) -> Lane:
        """The lane of the code that runs now and works for ``gpu``."""
        task = current_graph_task()
        if task >= 0:  # as in_backward()
            return self._backward_lane(task, gpu)
        lane = getattr(self._local, "lane", None)
        if lane is None:
            lane = self._local.lane = self._new_thread_lane(gpu)
        lane.gpu = gpu
        return lane

    def _new_thread_lane(self, gpu: int) -> Lane:
        thread = threading.current_thread()
        if thread is threading.main_thread():
            return self.main
        with self._lock:
            self._run_queue(self.main)
            task = getattr(self._local, "task", None)
            order = ("", task) if task is not None else _by_number(thread.name)
            lane = Lane(f"thread, GPU {gpu}", self.main.time, (gpu, *order), self.main.region)
            lane.ended = lambda: not thread.is_alive()
            self.children.append(lane)
            return lane

    @contextmanager
    def task(self, number: int) -> Iterator[None]:
        """Around one of many tasks of a thread that lives on: each has a lane of its own, which ends with it."""
        before = vars(self._local).copy()
        vars(self._local).update(lane=None, task=number)
        try:
            yield
        finally:
            lane = self._local.lane
            vars(self._local).clear()
            vars(self._local).update(before)
            if lane is not None and lane is not self.main:
                lane.ended = lambda: True

    def _backward_lane(self, task: int, gpu: int) -> Lane:
        """PyTorch has one backward thread for each GPU, so here is one lane for each.

        Backward called from another thread than the main one stays in that thread's lane.
        """
        with self._lock:
            backward = self._backwards.get(task)
            if backward is None:
                callers = [lane for lane in self._callers if lane.gpu == gpu] or self._callers or [self.main]
                backward = self._backwards[task] = _Backward(callers[-1])
            caller = backward.caller
            if caller is not self.main:
                return caller
            lane = backward.lanes.get(gpu)
            if lane is None:
                if not self.children:
                    self._run_queue(caller)
                lane = Lane(f"backward, GPU {gpu}", caller.time, (gpu, "backward"), caller.region)
                backward.lanes[gpu] = lane
                self.children.append(lane)
            return lane

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Around a call of autograd's engine: its lanes begin where the caller is, and end before it goes on."""
        if in_backward():  # a backward inside a backward keeps its lanes
            yield
            return
        main = threading.current_thread() is threading.main_thread()
        caller = self.main if main else getattr(self._local, "lane", None)
        if caller is None:  # a thread that has not used a simulated GPU yet
            caller = self.lane(0)
        self._callers.append(caller)
        try:
            yield
        finally:
            with self._lock:
                self._callers.remove(caller)
                for task in [task for task, each in self._backwards.items() if each.caller is caller]:
                    for lane in self._backwards.pop(task).lanes.values():
                        lane.ended = lambda: True
                self._join()

    # --- Placing work ---------------------------------------------------------------------------------------

    def put(self, work: Work, needs: Iterable[Work | None] = ()) -> Work:
        """Launch work from the lane that runs now, which gives it its region and the time of its launch.

        Args:
            work: without what ``put`` fills in (see ``Work``).
            needs: what must have ended before; None is nothing.
        """
        lane = self.lane(work.gpus[0])
        stream = work.queues[0]  # it keeps its order, so what is in it already need not be waited for
        work.needs = tuple(needed for needed in needs if needed is not None and stream not in needed.queues)
        work.lane, work.region = lane.name, lane.region
        work.takes_gil = not in_backward()
        work.launch_s = self.launch_s if work.takes_gil else self.backward_launch_s
        self._enqueue(lane, work)
        self.record(work)
        return work

    def record(self, work: Work) -> None:
        """Running profiles get the work."""
        for watcher in self.watchers:
            watcher.append(work)

    def act(self, action: Callable[[Lane], object], gpu: int) -> None:
        """Do something to the clocks when the lane gets there: waiting for a stream, recording an event."""
        self._enqueue(self.lane(gpu), action)

    def stamp(self, gpu: int, stamp: Stamp) -> None:
        """Note on the stamp the present moment in the lane that runs now, as its stream of ``gpu`` will see it.

        Memory can be freed in any thread (by the garbage collector): one without a lane gets none here.
        """
        known = in_backward() or getattr(self._local, "lane", None) is not None
        if known or threading.current_thread() is threading.main_thread():
            self._enqueue(self.lane(gpu), stamp)
        else:
            stamp.time, stamp.host = max(self.main.time, stamp.stream.time), self.main.time

    def _enqueue(self, lane: Lane, item: Queued) -> None:
        if not self.children:
            self._run(lane, item)
            return
        with self._lock:
            lane.queue.append(item)
            if lane is self.main and not isinstance(item, Stamp):  # (memory is freed at any moment, also before
                self._join()  # the next task of a pool has begun: that does not show that the main lane goes on)

    def _join(self) -> None:
        """If the threads that ran beside the main lane have all ended, place what they did."""
        if not self.children or not all(lane.ended() for lane in self.children):
            return
        children, self.children = self.children, []
        if sum(not isinstance(item, Stamp) for item in self.main.queue) > 1:  # the main lane has worked as well
            self._merge([self.main, *children])
        else:
            self._merge(children)
            self.main.time = max([self.main.time, *(lane.time for lane in children)])
            self._run_queue(self.main)

    def settle(self) -> None:
        """Place everything that waits, so that times can be read."""
        with self._lock:
            self._join()
            self._merge([self.main, *self.children])

    def _run_queue(self, lane: Lane) -> None:
        while lane.queue:
            self._run(lane, lane.queue.popleft())

    def _merge(self, lanes: list[Lane]) -> None:
        """Place the queues of several lanes: always the lane that is earliest in simulated time."""
        ready = [(lane.time, lane.order, i, lane) for i, lane in enumerate(lanes) if lane.queue]
        heapq.heapify(ready)
        waiting: list[tuple] = []
        while ready:
            entry = heapq.heappop(ready)
            *_, order, i, lane = entry
            item = lane.queue[0]
            if ready and type(item) is Work and any(needed.end < 0 for needed in item.needs):
                waiting.append(entry)  # another lane must come first
                continue
            self._run(lane, lane.queue.popleft())
            for other in waiting:
                heapq.heappush(ready, other)
            waiting.clear()
            if lane.queue:
                heapq.heappush(ready, (lane.time, order, i, lane))

    def _run(self, lane: Lane, item: Queued) -> None:
        if isinstance(item, Work):
            self._place_work(lane, item)
        elif isinstance(item, Stamp):
            item.time, item.host = max(lane.time, item.stream.time), lane.time
        else:
            item(lane)

    def _place_work(self, lane: Lane, work: Work) -> None:
        begin = lane.time
        if work.takes_gil and self.gil_s:
            begin = max(begin, self.gil_free_at)
            self.gil_free_at = begin + self.gil_s
        launched = begin + work.launch_s
        start = launched
        for timeline in (*work.queues, *work.followers):
            if timeline.time > start:
                start = timeline.time
        for needed in work.needs:
            if needed.end > start:
                start = needed.end
        if work.ports:
            tried = -1.0
            while tried != start:  # until all of them are free at the same time
                tried = start
                for port in work.ports:
                    start = port.free_from(start, work.seconds)
            for port in work.ports:
                port.take(start, work.seconds)
        work.start = start
        end = start + work.seconds if work.kernel is None else work.shared[0].place(work, launched, begin)
        for timeline in (*work.queues, *work.followers):
            timeline.time = end
        work.launched, work.end = launched, end
        work.needs = ()  # the past need not be kept alive
        if work.share is not None:
            for gpu in work.shared:
                gpu.take(start, end, work.share)
        lane.time = end if work.host_waits else launched
