"""``simgpu.races``: every pair of accesses that nothing orders is found, and nothing else."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from simgpu_ranks import join
from simgpu_support import default, square
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

import simgpu
from lessons.algorithms import pipelines
from utils.ranks import World

pytestmark = pytest.mark.usefixtures("three_gpus")


def kinds(races: simgpu.Races) -> list[str]:
    return [race.kind for race in races.found]


class Program:
    """``self(name)`` says whether the ordering call of that name is to be made."""

    def __init__(self, without: str) -> None:
        self.without = without

    def __call__(self, name: str) -> bool:
        return name != self.without


def side_stream(keeps: Program) -> None:
    x, side = square(), simgpu.Stream(0)
    if keeps("before"):
        side.wait_stream(default())
    with torch.simgpu.stream(side):
        y = x * 2
    if keeps("after"):
        default().wait_stream(side)
    x.add_(y)


def events(keeps: Program) -> None:
    x, side, ready, done = square(), simgpu.Stream(0), torch.simgpu.Event(), torch.simgpu.Event()
    if keeps("record"):
        ready.record()
    if keeps("wait"):
        ready.wait(side)
    with torch.simgpu.stream(side):
        x.mul_(2)
        done.record()
    if keeps("synchronize"):
        done.synchronize()
    x + 1


def prefetching(keeps: Program) -> None:
    batches, side, weight = (
        [torch.ones(64, 64).pin_memory() for _ in range(4)],
        simgpu.Stream(0),
        square().repeat(16, 1),
    )

    def copied(batch: torch.Tensor) -> torch.Tensor:
        with torch.simgpu.stream(side):
            return batch.to("simgpu:0", non_blocking=True)

    following = copied(batches[0])
    for batch in [*batches[1:], None]:
        if keeps("wait_stream"):
            default().wait_stream(side)
        images = following
        if keeps("record_stream"):
            images.record_stream(default())
        (images @ weight).sum()
        del images
        following = copied(batch) if batch is not None else None
    torch.simgpu.synchronize()


def between_gpus(keeps: Program) -> None:
    x = square(0)
    there, back = simgpu.Stream(0), simgpu.Stream(1)
    if keeps("outgoing"):
        there.wait_stream(torch.simgpu.current_stream(0))
    with torch.simgpu.stream(there), torch.simgpu.stream(back):
        copy = x.to("simgpu:1")
        arrived = back.record_event()
    if keeps("incoming"):
        torch.simgpu.current_stream(1).wait_event(arrived)
    copy + 1
    if keeps("sent"):
        default(0).wait_stream(there)
    x.zero_()


def reducing_in_the_background(keeps: Program) -> None:
    model = [nn.Linear(4, 4).to(f"simgpu:{gpu}") for gpu in range(2)]
    for gpu, one in enumerate(model):
        one(square(gpu)).sum().backward()
    handle = simgpu.all_reduce([one.weight.grad for one in model], async_op=True)
    if keeps("wait"):
        handle.wait()
    for gpu, one in enumerate(model):
        one(square(gpu)).sum().backward()  # adds to what is being reduced


def backward_in_a_side_stream(keeps: Program) -> None:
    side, layer, x = simgpu.Stream(0), nn.Linear(4, 4).to("simgpu:0"), square()
    if keeps("before"):
        side.wait_stream(default())
    with torch.simgpu.stream(side):
        layer(x).sum().backward()
    if keeps("after"):
        default().wait_stream(side)
    with torch.no_grad():
        layer.weight -= layer.weight.grad


def to_pinned_memory(keeps: Program) -> None:
    pinned, x = torch.zeros(4, 4).pin_memory(), square()
    pinned.copy_(x, non_blocking=True)
    if keeps("arrived"):
        torch.simgpu.current_stream().synchronize()
    pinned.sum()
    there = pinned.to("simgpu:0", non_blocking=True)
    if keeps("gone"):
        torch.simgpu.synchronize()
    pinned.fill_(3)
    assert there.shape == (4, 4)


def from_ordinary_memory(keeps: Program) -> None:
    side = simgpu.Stream(0)
    with torch.simgpu.stream(side):
        x = torch.ones(4, 4).to("simgpu:0", non_blocking=not keeps("host waits"))
    x + 1


def running_statistics(keeps: Program) -> None:
    norm, x, side = nn.BatchNorm1d(4).to("simgpu:0"), square(), simgpu.Stream(0)
    norm.weight.requires_grad_(False), norm.bias.requires_grad_(False)
    side.wait_stream(default())
    with torch.simgpu.stream(side):
        norm(x)
    if keeps("wait"):
        default().wait_stream(side)
    norm(x)


PROGRAMS: dict[Callable, tuple[str, ...]] = {
    side_stream: ("before", "after"),
    events: ("record", "wait", "synchronize"),
    prefetching: ("wait_stream", "record_stream"),
    between_gpus: ("outgoing", "incoming", "sent"),
    reducing_in_the_background: ("wait",),
    backward_in_a_side_stream: ("before", "after"),
    to_pinned_memory: ("arrived", "gone"),
    from_ordinary_memory: ("host waits",),
    running_statistics: ("wait",),
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("numbers", [True, False])
def test_a_program_without_one_of_its_ordering_calls_has_a_race(program, numbers):
    simgpu.cluster(gpus_per_node=3, numbers=numbers)
    if not numbers and program is to_pinned_memory:
        return  # nothing is copied to the host then
    with simgpu.races() as races:
        program(Program(without=""))
    assert not races.found, races
    for call in PROGRAMS[program]:
        with simgpu.races() as races:
            program(Program(without=call))
        expected = {"record_stream": "memory", "arrived": "host", "gone": "host"}.get(call, "order")
        assert set(kinds(races)) == {expected}, (call, races)


def test_backward_may_read_what_forward_made_in_another_stream():
    side, layer = simgpu.Stream(0), nn.Sequential(nn.Linear(4, 4), nn.Tanh()).to("simgpu:0")
    with simgpu.races() as races:
        x = square()
        side.wait_stream(default())
        with torch.simgpu.stream(side):
            loss = layer(x).sum()
        loss.backward()
        with torch.simgpu.stream(side):
            layer[0].weight.grad.mul_(2)  # where backward has run on CUDA
    assert not races.found, races


@pytest.mark.parametrize("schedule", [pipelines.gpipe, pipelines.one_f_one_b])
def test_pipelines_by_hand_have_no_race(schedule):
    devices = [f"simgpu:{i}" for i in range(3)]
    stages = pipelines.cut([nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(5)], [2, 1, 2], devices)
    optimizer = torch.optim.Adam([p for stage in stages for p in stage.parameters()])
    with simgpu.races() as races:
        for _ in range(2):
            inputs, targets = torch.randn(6, 4, device=devices[0]), torch.randn(6, 4, device=devices[-1])
            pipelines.train_step(stages, inputs, targets, nn.functional.mse_loss, 3, schedule)
            optimizer.step()
            optimizer.zero_grad()
    assert not races.found, races


def test_data_parallel_has_no_race():
    model = nn.DataParallel(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).to("simgpu:0"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with simgpu.races() as races:
        for _ in range(2):
            nn.functional.mse_loss(model(torch.randn(8, 4)), torch.zeros(8, 2, device="simgpu:0")).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert not races.found, races


@pytest.fixture(scope="module")
def world():
    with World(2, backend="gloo", timeout=100) as world:
        yield world


def training(kind: str) -> str:
    device = join()
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3))).to(device)
    with simgpu.races() as races:
        if kind == "pipeline":
            stage = PipelineStage(layers, dist.get_rank(), 2, device)
            schedule = Schedule1F1B(stage, 4, loss_fn=nn.functional.mse_loss)
        model: Any = layers
        if kind == "DDP":
            model = DistributedDataParallel(layers, bucket_cap_mb=0.0001)
        elif kind == "FSDP2":
            for layer in layers:
                fully_shard(layer)
            model = fully_shard(layers)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            x = torch.ones(8, 8, device=device)
            if kind == "pipeline":
                schedule.step(x) if dist.get_rank() == 0 else schedule.step(target=x)
            else:
                model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return str(races)


@pytest.mark.parametrize("kind", ["DDP", "FSDP2", "pipeline"])
def test_torchs_own_training_on_ranks_has_no_race(world, kind):
    assert world.run(training, kind) == ["no race: all work on the same memory is in order"] * 2


def communicating(without: str) -> list[str]:
    device, me = join(), dist.get_rank()
    keeps = Program(without)
    with simgpu.races() as races:
        x, y = torch.ones(8, device=device), torch.zeros(8, device=device)
        work = dist.all_reduce(x, async_op=True)
        y.add_(1)
        if keeps("all_reduce"):
            work.wait()
        x.mul_(2)
        whole = torch.empty(16, device=device)
        work = dist.all_gather_into_tensor(whole, y, async_op=True)
        whole.shape  # noqa: B018
        if keeps("all_gather"):
            work.wait()
        y.zero_()
        message = dist.isend(x, 1) if me == 0 else dist.irecv(x, 0)
        if keeps("message"):
            message.wait()
        x.fill_(3)
        message.wait()
        future = dist.all_reduce(y, async_op=True).get_future()
        if keeps("future"):
            future.wait()
        y.add_(1)
    return [str(race) for race in races]


@pytest.mark.parametrize("call", ["", "all_reduce", "all_gather", "message", "future"])
def test_a_collective_that_nobody_waits_for_has_a_race_on_each_rank(world, call):
    for rank, races in enumerate(world.run(communicating, call)):
        assert len(races) == (call != ""), races
        if call:
            name = {"all_reduce": "all-reduce", "all_gather": "all-gather", "future": "all-reduce"}.get(
                call, ("send", "recv")[rank]
            )
            assert f".wait() on what {name} returned" in races[0]


def test_the_report_names_both_lines_streams_and_what_is_missing():
    x, side = square(), simgpu.Stream(0)
    with simgpu.races() as races:
        with torch.simgpu.stream(side):
            y = x * 2
        for _ in range(3):
            y + 1
    (race,) = races.found
    assert str(races) == str(race)
    first, *lines = str(race).splitlines()
    assert first == "Race on GPU 0: nothing puts these two in order."
    assert lines[0].startswith("  mul writes a tensor of 4×4, in stream side: line ")
    assert lines[0].endswith(" of test_races.py, y = x * 2")
    assert lines[1].startswith("  add reads it, in the default stream: line ") and lines[1].endswith(", y + 1")
    assert lines[2] == "What would: torch.simgpu.current_stream(0).wait_stream(side) between them"


def test_a_report_keeps_no_tensor_alive():
    x, side, allocated = square(), simgpu.Stream(0), torch.simgpu.memory_allocated
    before = allocated(0)
    with simgpu.races() as races:
        with torch.simgpu.stream(side):
            y = x * 2
        y.sum()
    del y
    assert len(races) == 1 and allocated(0) == before
    with simgpu.races() as races:
        pinned = torch.ones(4).pin_memory()
        there = pinned.to("simgpu:0", non_blocking=True)
        del pinned
        assert not races._pinned and len(there) == 4


def test_a_pair_of_lines_is_told_once():
    x, side = square(), simgpu.Stream(0)
    with simgpu.races() as races:
        for _ in range(3):
            side.wait_stream(default())
            with torch.simgpu.stream(side):
                y = x * 2
            y.sum()
            torch.simgpu.synchronize()
    assert [race.times for race in races] == [3] and "(found 3 times)" in str(races)


def test_it_can_stop_at_the_first_race_and_looks_only_inside_the_block():
    x, side = square(), simgpu.Stream(0)
    with torch.simgpu.stream(side):
        y = x * 2
    with pytest.raises(simgpu.RaceError, match="mul writes"), simgpu.races(stop=True):
        y + 1  # from before the block: not known
        with torch.simgpu.stream(side):
            y = x * 2
        y + 1
    y + 1
    with simgpu.races() as races, pytest.raises(RuntimeError, match="one at a time"), simgpu.races():
        pass
    assert str(races) == "no race: all work on the same memory is in order" and not list(races)
    assert y.allocation.history.watch is not races


def test_all_threads_and_clusters_made_inside_are_watched():
    from concurrent.futures import ThreadPoolExecutor

    with simgpu.races() as races:
        simgpu.cluster(gpus_per_node=2)
        x, side = square(1), simgpu.Stream(1)

        def work() -> None:
            with torch.simgpu.stream(side):
                x.mul_(2)

        with ThreadPoolExecutor(1) as pool:
            pool.submit(work).result()
    (race,) = races.found
    assert race.where == "GPU 1" and "side.wait_stream(torch.simgpu.default_stream(1))" in race.cure


def test_memory_goes_to_the_next_tensor_of_its_size_only():
    side = simgpu.Stream(0)
    for size, found in ((4, ["memory"]), (40, [])):
        with simgpu.races() as races:
            with torch.simgpu.stream(side):
                x = torch.ones(4, 4, device="simgpu:0")
            default().wait_stream(side)
            x + 1
            del x
            with torch.simgpu.stream(side):
                y = torch.ones(size, size, device="simgpu:0")
        assert kinds(races) == found and len(y) == size
