"""Streams and events of simulated GPUs, and what a profile records of them."""

import pytest
import torch
from simgpu_support import LAUNCH, MM, elapsed, exactly, happened, million, toy

import simgpu


def test_work_of_two_streams_runs_at_the_same_time_unless_one_waits():
    toy()
    x, side = million(), simgpu.Stream(0)

    def work(wait):
        y = x @ x
        if wait == "stream":
            side.wait_stream(torch.simgpu.current_stream(0))
        elif wait == "event":
            side.wait_event(torch.simgpu.default_stream(0).record_event())
        with simgpu.stream(side):
            x @ x
        return y

    assert elapsed(lambda: work(None)) == exactly(MM)
    assert elapsed(lambda: work("stream")) == exactly(2 * MM)
    assert elapsed(lambda: work("event")) == exactly(2 * MM)


def test_what_is_read_in_another_stream_has_been_written():
    toy()
    x, side = million(), simgpu.Stream(0)
    y = x @ x
    with simgpu.profile() as prof, simgpu.stream(side):
        z = y @ y
    assert prof.elapsed == exactly(MM)

    def chain():
        first = x @ x
        with simgpu.stream(side):
            first @ first

    assert elapsed(chain) == exactly(2 * MM)
    del z


def test_events_measure_time_between_them():
    toy(launch_s=LAUNCH)
    x = million()
    start, end = simgpu.Event(enable_timing=True), torch.simgpu.Event(enable_timing=True)
    torch.simgpu.synchronize()
    start.record()
    for _ in range(3):
        x = x @ x
    end.record()
    assert not end.query(), "the host is ahead"
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) == exactly(1e3 * (LAUNCH + 3 * MM)), "in milliseconds, as torch.cuda.Event"


def test_regions_name_the_work_inside_also_in_backward():
    toy()
    x = million().requires_grad_()
    with simgpu.profile() as prof:
        with simgpu.region("F1"):
            y = (x @ x).sum()
        z = y * 2
        with simgpu.region("B1"):
            z.backward()
    named = {(event.region, event.phase) for event in prof.events if event.name != "ones_like"}
    assert named == {("F1", "forward"), ("", "forward"), ("B1", "backward")}
    assert [event.region for event in prof.events if event.name == "ones_like"] == ["B1"], "where backward begins"
    assert {"F1", "B1"} <= {span.label for span in prof.spans()}
    with pytest.raises(ZeroDivisionError), simgpu.region("broken"):
        x + 1 / 0
    with simgpu.profile() as prof:
        x + 1
    assert [event.region for event in prof.events] == [""], "a region ends with an error, too"


def test_a_profile_counts_nothing_from_before_or_after():
    toy(launch_s=LAUNCH)
    x = million()
    for _ in range(5):
        x @ x
    with simgpu.profile() as prof:
        x @ x
    for _ in range(5):
        x @ x
    assert len(prof.events) == 1
    assert (prof.events[0].start, prof.elapsed) == (exactly(LAUNCH), exactly(LAUNCH + MM))
    with simgpu.profile() as outer, simgpu.profile() as inner:
        x @ x
    assert happened(inner) == happened(outer) != []
