"""Exercise 5 of the lab on the GIL and reference counts: items for processes. What is not here is in the official solution."""

import multiprocessing

import torch
import torch.distributed as dist
from known_answers import right, wrong

from utils import launch

INITIAL = ", initializer=torch.set_num_threads, initargs=(1,)"
POOL = f"ProcessPoolExecutor(workers, mp_context=fork{INITIAL})"
MAP = "list(pool.map(function, items))"
FORK = '    fork = multiprocessing.get_context("fork")\n'
WITH = f"    with {POOL} as pool:\n        return {MAP}"
OTHER_POOL = {POOL: "fork.Pool(workers, torch.set_num_threads, (1,))"}
right("a pool", OTHER_POOL | {MAP: "pool.map(function, items, chunksize=1)"})


@right("spawned")
def spawned():
    def run_parallel(function, items, workers):
        spawn = multiprocessing.get_context("spawn")
        with spawn.Pool(workers, torch.set_num_threads, (1,)) as pool:
            return pool.map(function, items, chunksize=max(1, -(-len(items) // workers)))

    return (run_parallel,)


@right("ranks")
def ranks():
    def share(function, items):
        torch.set_num_threads(1)
        return [function(item) for item in items[dist.get_rank() :: dist.get_world_size()]]

    def run_parallel(function, items, workers):
        shares = launch(share, function, items, ranks=workers)
        return [shares[number % workers][number // workers] for number in range(len(items))]

    return (run_parallel,)


def shares(function, items, results, begin):
    torch.set_num_threads(1)
    for number, item in enumerate(items):
        results.put((begin + number, function(item)))


wrong("a loop", "one after the other", {FORK + WITH: "    return [function(item) for item in items]"})
wrong("threads", "which share one GIL", {POOL: "ThreadPoolExecutor(workers)"})
wrong("many threads each", "several threads of torch", {INITIAL: ""})
wrong(
    "unordered", "the order in which they are ready", OTHER_POOL | {MAP: "list(pool.imap_unordered(function, items))"}
)
wrong("errors swallowed", "as if nothing had happened", {
    "def run_parallel": "def quietly(function, item):\n    try:\n        return function(item)\n    except Exception:\n        return None\n\n\ndef run_parallel",
    "pool.map(function, items)": "pool.map(quietly, [function] * len(items), items)"
})  # fmt: skip
