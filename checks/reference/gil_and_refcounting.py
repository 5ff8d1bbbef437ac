import multiprocessing


import sys


import time


from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor


import torch


from torch import nn


from torch.nn.functional import mse_loss


import simgpu


from utils import draw


from checks.labs import gil_and_refcounting as check


def nothing_returned(a):
    b = [a, a]
    b.append(a)


def three_times_in_a_list(a):
    return [a, a, a]


def one_list_held_twice(a):
    box = [a]
    return [box, box]


def two_closures(a):
    return lambda: a, lambda: -a


def cycle(a):
    box = [a]
    box.append(box)


def fail(x):
    raise ValueError("no luck")


def error_kept(a):
    try:
        fail(a)
    except ValueError as error:
        return error


def detached(a):
    return a.detach()


def saved_for_backward(a):
    a.requires_grad_()
    return (a * a).sum()


def predictions():
    ### BEGIN SOLUTION
    return {
        "nothing_returned": 0,
        "three_times_in_a_list": 3,
        "one_list_held_twice": 1,
        "two_closures": 1,
        "cycle": 1,
        "error_kept": 2,
        "detached": 0,
        "saved_for_backward": 1,
    }


def added_references(situation):
    ### BEGIN SOLUTION
    a = torch.zeros(3)
    before = sys.getrefcount(a)
    kept = situation(a)
    after = sys.getrefcount(a)
    del kept
    return after - before


def one_forward(a):
    layer = nn.Linear(3, 3)
    layer(a)
    return layer


def one_forward_output_kept(a):
    return nn.Linear(3, 3)(a)


def in_an_optimizer(a):
    return torch.optim.SGD([a])


def setting(steps=20):
    """A model, its optimizer, and batches, on a new simulated GPU."""
    simgpu.cluster(gpus_per_node=1)
    torch.manual_seed(0)
    with simgpu.device(0):
        model = nn.Sequential(nn.Linear(64, 1024), nn.Tanh(), nn.Linear(1024, 4))
        batches = [(torch.randn(128, 64), torch.randn(128, 4)) for _ in range(steps)]
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), batches


def alive(train):
    """Megabytes on the simulated GPU after each step of the optimizer."""
    model, optimizer, batches = setting()
    found = []
    optimizer.register_step_post_hook(lambda *_: found.append(torch.simgpu.memory_allocated(0) / 1e6))
    train(model, optimizer, batches)
    return found


def leaking_log(model, optimizer, batches):
    outputs = []
    model[1].register_forward_hook(lambda layer, inputs, output: outputs.append(output))
    for x, y in batches:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    return [output.mean().item() for output in outputs]


def train_and_log(model, optimizer, batches):
    ### BEGIN SOLUTION
    means = []
    handle = model[1].register_forward_hook(lambda layer, inputs, output: means.append(output.mean().item()))
    for x, y in batches:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    handle.remove()
    return means


def make_train_step(model, optimizer):
    def train_step(x, y):
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        if not loss.isfinite():
            raise ValueError(f"the loss is {loss.item()}")
        loss.backward()
        optimizer.step()

    return train_step


def leaking_errors(train_step, batches):
    errors = []
    for number, (x, y) in enumerate(batches):
        try:
            train_step(x, y)
        except ValueError as error:
            errors.append((number, error))
    return [(number, str(error)) for number, error in errors]


def watched_step(x, y):
    found.append(torch.simgpu.memory_allocated(0) / 1e6)
    train_step(x, y)


def train_through_errors(train_step, batches):
    ### BEGIN SOLUTION
    errors = []
    for number, (x, y) in enumerate(batches):
        try:
            train_step(x, y)
        except ValueError as error:
            errors.append((number, str(error)))
    return errors


def walk(seed):
    """How far a random walk in 16 dimensions has come after 8,000 steps."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.zeros(16)
    for _ in range(8000):
        place = (place + torch.randn(16, generator=generator)).clamp(-40, 40)
    return place.norm().item()


def run_parallel(function, items, workers):
    ### BEGIN SOLUTION
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, mp_context=fork, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(function, items))


def in_threads(function, items, workers):
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(function, items))


def seconds(work, *arguments):
    """The shortest of three runs: other programs can only make it longer."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        work(*arguments)
        times.append(time.perf_counter() - start)
    return min(times)


def launch_and_held(runs):
    ### BEGIN SOLUTION
    def per_launch(threads):
        (few, short), (many, long) = sorted((launches, time) for (n, launches), time in runs.items() if n == threads)
        return (long - short) / (many - few)

    threads = max(n for n, _ in runs)
    launch, turn = per_launch(1), per_launch(threads)
    return launch, turn / threads if turn > 1.000001 * launch else None


def step_time(kernels, launch, held, gpus):
    ### BEGIN SOLUTION
    gil, ready, done = 0.0, [0.0] * gpus, [0.0] * gpus
    for kernel in kernels:
        for gpu in range(gpus):
            begin = max(gil, ready[gpu])
            gil = begin + held
            ready[gpu] = begin + launch
            done[gpu] = max(done[gpu], ready[gpu]) + kernel
    return max(done)


def smallest_graph(kernels, launch, held, gpus, slack):
    ### BEGIN SOLUTION
    for size in range(1, len(kernels) + 1):
        graphs = [sum(kernels[first : first + size]) for first in range(0, len(kernels), size)]
        if step_time(graphs, launch, held, gpus) <= slack * sum(kernels):
            return size
    return None


def forward(gpus, rows):
    simgpu.cluster(gpus_per_node=gpus, gpu="H100", numbers=False)
    chain = nn.Sequential(*[nn.Linear(1024, 1024, bias=False, dtype=torch.bfloat16) for _ in range(24)])
    replicas = nn.parallel.replicate(chain.to("simgpu:0"), range(gpus))
    inputs = [torch.empty(rows, 1024, dtype=torch.bfloat16, device=simgpu.device(gpu)) for gpu in range(gpus)]
    with simgpu.profile() as prof:
        nn.parallel.parallel_apply(replicas, inputs)
    return 1e6 * prof.elapsed, 1e6 * max(event.seconds for event in prof.events)
