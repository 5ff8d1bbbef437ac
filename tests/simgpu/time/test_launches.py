"""The host: launches one after the other, waits where it must, and has threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from simgpu_support import LAUNCH, MM, exactly, happened, million, toy
from torch import nn
from torch.nn.functional import cross_entropy

import simgpu
from simgpu.cluster import current


def products(left, right, dtype=torch.bfloat16):
    return lambda: (
        torch.empty(left, dtype=dtype, device="simgpu:0") @ torch.empty(right, dtype=dtype, device="simgpu:0")
    )


def test_the_host_launches_one_operator_after_the_other():
    toy(launch_s=LAUNCH)
    x = torch.ones(1, device="simgpu:0")
    with simgpu.profile() as prof:
        for _ in range(100):
            x = x + 1
    assert prof.elapsed == exactly(100 * LAUNCH + 8e-12), "the GPU waits for the host"
    assert [event.launched for event in prof.events] == [exactly((i + 1) * LAUNCH) for i in range(100)]


def test_the_host_runs_ahead_of_a_busy_gpu():
    toy(launch_s=LAUNCH)
    x = million()
    with simgpu.profile() as prof:
        for _ in range(10):
            y = x @ x
    assert prof.elapsed == exactly(LAUNCH + 10 * MM)
    assert prof.events[-1].launched == exactly(10 * LAUNCH)
    with simgpu.profile() as prof:
        for _ in range(10):
            y = x @ x
            torch.simgpu.synchronize()
    assert prof.elapsed == exactly(10 * (LAUNCH + MM)), "waiting for each one"
    with simgpu.profile() as prof:
        (x @ x)[0, 0].item()
        (x @ x)[0, 0].item()
    copy = LAUNCH + 1e-5 + 4e-10
    assert prof.elapsed == exactly(2 * (max(LAUNCH + MM, LAUNCH) + copy) - 2 * LAUNCH), "reading a number waits too"
    del y


def test_an_operator_whose_result_has_an_unknown_size_makes_the_host_wait():
    toy(launch_s=LAUNCH)
    x = million()
    for function, waits in ((lambda: x[0].nonzero(), True), (lambda: x[0] + 1, False)):
        with simgpu.profile() as prof:
            x @ x
            function()
            x + 1
        assert prof.events[-1].launched == exactly(prof.events[-2].end + LAUNCH if waits else 3 * LAUNCH)


def test_launching_from_backward_costs_what_was_said():
    for backward_launch_s, factor in ((None, 0.5), (0.0, 0.0), (3 * LAUNCH, 3.0)):
        toy(launch_s=LAUNCH, backward_launch_s=backward_launch_s)
        x = torch.ones(1, device="simgpu:0", requires_grad=True)
        y = x.sin().sin().sin()
        with simgpu.profile() as prof:
            y.backward()
        backward = [event for event in prof.events if event.phase == "backward"]
        assert len(backward) >= 6
        assert all(event.launch_s == exactly(factor * LAUNCH) for event in backward)
        assert {event.host for event in backward} == {"backward, GPU 0"}


def test_backward_on_two_gpus_has_a_host_thread_for_each():
    toy(launch_s=0, backward_launch_s=LAUNCH)
    losses = []
    for gpu in range(2):
        x = torch.ones(1, device=f"simgpu:{gpu}", requires_grad=True)
        for _ in range(20):
            x = x.sin()
        losses.append(x)
    both = losses[0] + losses[1].to("simgpu:0")
    with simgpu.profile() as prof:
        both.backward()
    hosts = {event.host: sum(e.launch_s for e in prof.events if e.host == event.host) for event in prof.events}
    assert {"backward, GPU 0", "backward, GPU 1"} <= set(hosts)
    assert prof.elapsed < 0.7 * sum(hosts.values()), "they launch at the same time"


def test_threads_that_launch_from_python_take_turns_unless_the_gil_is_off():
    times = {}
    for held in (LAUNCH, LAUNCH / 2, 0.0):
        toy(4, launch_s=LAUNCH, gil_s=held)

        def work(gpu):
            x = torch.ones(1, device=f"simgpu:{gpu}")
            for _ in range(9):
                x = x + 1

        with simgpu.profile() as prof:
            threads = [threading.Thread(target=work, args=(gpu,)) for gpu in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        times[held] = prof.elapsed
    assert times[LAUNCH] == exactly(40 * LAUNCH + 8e-12), "all of a launch holds it: one thread at a time"
    assert times[LAUNCH / 2] == exactly(20.5 * LAUNCH + 8e-12), "and the last one's other half"
    assert times[0.0] == exactly(10 * LAUNCH + 8e-12)
    toy(4, launch_s=LAUNCH, gil=False)
    assert current().clock.gil_s == 0


def _train_in_parallel(gpus, **options):
    simgpu.cluster(gpus_per_node=gpus, **options)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10))
    parallel = nn.DataParallel(model.to("simgpu:0"))
    optimizer = torch.optim.Adam(parallel.parameters())
    batch, labels = torch.randn(3 * gpus, 64), torch.zeros(3 * gpus, dtype=torch.long, device="simgpu:0")
    with simgpu.profile() as prof:
        for _ in range(2):
            optimizer.zero_grad()
            loss = cross_entropy(parallel(batch), labels)
            loss.backward()
            optimizer.step()
    return prof.elapsed, happened(prof), [prof.peak_memory(gpu) for gpu in range(gpus)], loss.item()


def test_the_same_program_gives_the_same_timeline_also_with_threads():
    gpus = 4
    first = _train_in_parallel(gpus)
    assert len(first[1]) > 30 * gpus
    for _ in range(3):
        again = _train_in_parallel(gpus)
        assert again[0] == first[0]
        assert again[1] == first[1]
        assert again[2:] == first[2:]


def test_the_gil_makes_the_forward_of_data_parallel_longer():
    assert _train_in_parallel(8, gil=True)[0] > 1.1 * _train_in_parallel(8, gil=False)[0]


def _with_a_pool(threads):
    cluster = toy(launch_s=LAUNCH)
    x, y = million(), million().to("simgpu:1")
    waiting = []
    with simgpu.profile() as prof, ThreadPoolExecutor(threads) as pool:
        for _ in range(20):
            for task in [pool.submit(lambda tensor: tensor @ tensor, each) for each in (x, y)]:
                task.result()
            x + 1
            waiting.append(len(cluster.clock.main.queue))
    return waiting, happened(prof)


def test_a_pool_of_threads_keeps_the_order_and_nothing_waits():
    waiting, events = _with_a_pool(2)
    assert waiting == [0] * 20, "what the main thread launches after a task's result is placed at once"
    products = sorted(event[6] for event in events if event[0] == "mm")  # when the host had launched them
    sums = sorted(event[6] for event in events if event[0] == "add")
    assert all(products[2 * i + 1] < launched for i, launched in enumerate(sums)), "after the two tasks before it"
    assert all(launched < products[2 * i + 2] for i, launched in enumerate(sums[:-1])), "and before the next ones"
    assert _with_a_pool(2)[1] == events


def _freeing_between_two_tasks(frees):
    toy(launch_s=LAUNCH)
    x, y = million(), million().to("simgpu:1")
    kept, go = [x * 2], threading.Event()
    with simgpu.profile() as prof, ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(lambda: x @ x), pool.submit(lambda: go.wait(60) and y @ y)
        first.result()
        if frees:
            kept.clear()
        go.set()
        second.result()
        x + 1
    return happened(prof)


def test_memory_that_is_freed_between_two_tasks_of_a_pool_does_not_part_them():
    assert _freeing_between_two_tasks(True) == _freeing_between_two_tasks(False)
