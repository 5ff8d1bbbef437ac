"""Exercise 6 of the lab on the GIL and reference counts: items for processes."""

# ruff: noqa: F401 (modules that changed answers use)
import multiprocessing
import os
import pickle
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from functools import partial

import torch
from known_answers import right, wrong


def run_parallel(function, items, workers):
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, mp_context=fork, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(function, items))


POOL = "ProcessPoolExecutor(workers, mp_context=fork, initializer=torch.set_num_threads, initargs=(1,))"
MAP = "list(pool.map(function, items))"
FORK = '    fork = multiprocessing.get_context("fork")\n'
OTHER_POOL = {POOL: "fork.Pool(workers, torch.set_num_threads, (1,))"}
EQUAL = {
    "22: run_parallel with `dist.barrier()`": "the check's one rank waits for nobody",
    "24: `ProcessPoolExecutor(workers, mp_context=fork, initializer=torch.set_num_threads, initargs=(1,))` without "
    "mp_context": "on Linux, Python 3.11 to 3.13 fork anyway",
}


# --- right, and written differently

right("a pool", OTHER_POOL | {MAP: "pool.map(function, items, chunksize=1)"})
right("futures", {MAP: "[one.result() for one in [pool.submit(function, item) for item in items]]"})
right("even chunks", {MAP: "list(pool.map(function, items, chunksize=max(1, -(-len(items) // workers))))"})
right("no more workers than items", {"Executor(workers,": "Executor(max(1, min(workers, len(items))),"})


@right("spawned")
def spawned():
    def run_parallel(function, items, workers):
        spawn = multiprocessing.get_context("spawn")
        with spawn.Pool(workers, torch.set_num_threads, (1,)) as pool:
            return pool.map(function, items, chunksize=max(1, -(-len(items) // workers)))

    return (run_parallel,)


@right("pipes")
def pipes():
    def share(function, items, end):
        torch.set_num_threads(1)
        try:
            end.send([function(item) for item in items])
        except Exception as error:
            end.send(error)

    def run_parallel(function, items, workers):
        fork, found, team = multiprocessing.get_context("fork"), [None] * len(items), []
        for worker in range(workers):
            here, there = fork.Pipe()
            team.append((here, fork.Process(target=share, args=(function, items[worker::workers], there))))
            team[-1][1].start()
        failed = None
        for worker, (here, process) in enumerate(team):
            results = here.recv()
            process.join()
            if isinstance(results, Exception):
                failed = results
            else:
                found[worker::workers] = results
        if failed is not None:
            raise failed
        return found

    return (run_parallel,)


@right("ranks")
def ranks():
    import torch.distributed as dist

    from utils import launch

    def share(function, items):
        torch.set_num_threads(1)
        return [function(item) for item in items[dist.get_rank() :: dist.get_world_size()]]

    def run_parallel(function, items, workers):
        shares = launch(share, function, items, ranks=workers)
        return [shares[number % workers][number // workers] for number in range(len(items))]

    return (run_parallel,)


# --- wrong

wrong(
    "a loop",
    "one after the other",
    {FORK + "    with " + POOL + " as pool:\n        return " + MAP: "    return [function(item) for item in items]"},
)
wrong("threads", "which share one GIL", {POOL: "ThreadPoolExecutor(workers)"})
wrong(
    "called here too",
    "the process that calls does the work itself",
    {FORK: FORK + "    if items:\n        function(items[0])\n"},
)
wrong(
    "few items are done here",
    "also for few items",
    {FORK: FORK + "    if len(items) < workers:\n        return [function(item) for item in items]\n"},
)
wrong(
    "the caller's threads",
    "has lost its threads",
    {FORK: "    torch.set_num_threads(1)\n" + FORK, ", initializer=torch.set_num_threads, initargs=(1,)": ""},
)
wrong("many threads each", "several threads of torch", {", initializer=torch.set_num_threads, initargs=(1,)": ""})
wrong("two threads each", "several threads of torch", {"initargs=(1,)": "initargs=(2,)"})
wrong("two workers", "not so many processes as workers", {"Executor(workers,": "Executor(2,"})
wrong("at most three workers", "not so many processes as workers", {"Executor(workers,": "Executor(min(workers, 3),"})
wrong("one more", "not so many processes as workers", {"Executor(workers,": "Executor(workers + 1,"})
wrong("a process per item", "each costs time and memory to start", {
    POOL: "fork.Pool(workers, torch.set_num_threads, (1,), maxtasksperchild=1)", MAP: "pool.map(function, items, chunksize=1)"
})  # fmt: skip
wrong(
    "uneven chunks",
    "not shared out evenly",
    {MAP: "list(pool.map(function, items, chunksize=max(1, len(items) // workers)))"},
)
wrong("as completed", "in the order in which they are ready", {
    MAP: "[one.result() for one in as_completed([pool.submit(function, item) for item in items])]"
})  # fmt: skip
wrong(
    "unordered",
    "in the order in which they are ready",
    OTHER_POOL | {MAP: "list(pool.imap_unordered(function, items))"},
)
wrong("sorted", "the results come", {MAP: "sorted(pool.map(function, items))"})
wrong(
    "by a dict of items",
    "each item is computed once",
    {MAP: "[dict(zip(items, pool.map(function, items)))[item] for item in items]"},
)
wrong(
    "by a dict of texts",
    "each item is computed once",
    {
        MAP: "[dict(zip(map(str, items), pool.map(function, items)))[str(item)] for item in items + items][: len(items)] and list(pool.map(function, items))"
    },
)
wrong(
    "equal items once",
    "one result for each item",
    {MAP: "list(pool.map(function, [x for i, x in enumerate(items) if x not in items[:i]]))"},
)
wrong("nothing is no result", "raised", {FORK: FORK + "    if not items:\n        raise ValueError('no items')\n"})
wrong("None for nothing", "returns a list, not a NoneType", {FORK: FORK + "    if not items:\n        return None\n"})
wrong(
    "None is no result",
    "run_parallel returns one result for each item",
    {MAP: "[one for one in pool.map(function, items) if one is not None]"},
)
wrong(
    "falsy is None",
    "the results are not those of the items",
    {MAP: "[one or None for one in pool.map(function, items)]"},
)
wrong("four workers at most", "not so many processes as workers", {"Executor(workers,": "Executor(min(workers, 4),"})
wrong("a tuple", "returns a list, not a tuple", {MAP: "tuple(pool.map(function, items))"})
wrong("an iterator", "returns a list, not a", {MAP: "iter(list(pool.map(function, items)))"})
wrong("errors swallowed", "as if nothing had happened", {
    "def run_parallel": "def quietly(function, item):\n    try:\n        return function(item)\n    except Exception:\n        return None\n\n\ndef run_parallel",
    "pool.map(function, items)": "pool.map(partial(quietly, function), items)"
})  # fmt: skip
wrong("only some errors come out", "as if nothing had happened", {
    "def run_parallel": "def quietly(function, item):\n    try:\n        return function(item)\n    except (LookupError, ArithmeticError, OSError, RuntimeError):\n        return None\n\n\ndef run_parallel",
    "pool.map(function, items)": "pool.map(partial(quietly, function), items)"
})  # fmt: skip
wrong("everybody does everything", "each item is computed once", {
    MAP: "[list(pool.map(function, items)) for _ in range(workers)][0]"
})  # fmt: skip
wrong("a pool left behind", "processes are left behind", {
    FORK + "    with " + POOL + " as pool:\n        return " + MAP:
    FORK + "    global pool\n    pool = fork.Pool(workers, torch.set_num_threads, (1,))\n    return pool.map(function, items, chunksize=1)"
})  # fmt: skip
wrong("a sleeper is left behind", "processes are left behind", {
    FORK: FORK + "    fork.Process(target=os.read, args=(os.pipe()[0], 1), daemon=True).start()\n"
})  # fmt: skip
wrong(
    "the environment is left changed",
    "the environment variables",
    {FORK: FORK + "    os.environ['OMP_NUM_THREADS'] = '1'\n"},
)
wrong("a file is left behind", "the files in its folder", {FORK: FORK + "    open('results.txt', 'w').close()\n"})
wrong("items taken away", "is not as before", {FORK: FORK + "    items = [items.pop(0) for _ in range(len(items))]\n"})


@wrong("one after the other", "do not work at the same time")
def one_after_the_other():
    def share(function, items, end):
        torch.set_num_threads(1)
        end.send([function(item) for item in items])

    def run_parallel(function, items, workers):
        fork, found = multiprocessing.get_context("fork"), [None] * len(items)
        for worker in range(workers):
            here, there = fork.Pipe()
            process = fork.Process(target=share, args=(function, items[worker::workers], there))
            process.start()
            found[worker::workers] = here.recv()
            process.join()
        return found

    return (run_parallel,)


def shares(function, items, results, begin):
    torch.set_num_threads(1)
    for number, item in enumerate(items):
        results.put((begin + number, function(item)))


@wrong("the rest is lost", "items are never computed")
def the_rest_is_lost():
    def run_parallel(function, items, workers):
        fork = multiprocessing.get_context("fork")
        results, team, size = fork.SimpleQueue(), [], len(items) // workers
        for worker in range(workers):
            part = items[worker * size : (worker + 1) * size]
            team.append(fork.Process(target=shares, args=(function, part, results, worker * size)))
            team[-1].start()
        found = dict(results.get() for _ in range(size * workers))
        for process in team:
            process.join()
        return [found[number] for number in sorted(found)]

    return (run_parallel,)


@wrong("joined before the results are read", "waits for ever")
def joined_first():
    def run_parallel(function, items, workers):
        fork = multiprocessing.get_context("fork")
        results, team, size = fork.SimpleQueue(), [], -(-len(items) // workers)
        for worker in range(workers):
            part = items[worker * size : (worker + 1) * size]
            team.append(fork.Process(target=shares, args=(function, part, results, worker * size)))
            team[-1].start()
        for process in team:
            process.join()
        found = dict(results.get() for _ in items)
        return [found[number] for number in sorted(found)]

    return (run_parallel,)


@wrong("waits for a worker that has failed", "waits for ever")
def waits_for_ever():
    def run_parallel(function, items, workers):
        fork = multiprocessing.get_context("fork")
        results, team, size = fork.SimpleQueue(), [], -(-len(items) // workers)
        for worker in range(workers):
            part = items[worker * size : (worker + 1) * size]
            team.append(fork.Process(target=shares, args=(function, part, results, worker * size)))
            team[-1].start()
        found = dict(results.get() for _ in items)
        for process in team:
            process.join()
        return [found[number] for number in sorted(found)]

    return (run_parallel,)


def forked(function, items, workers, waits):
    team, found, failed = [], [None] * len(items), None
    for worker in range(workers):
        here, there = os.pipe()
        if not (pid := os.fork()):
            torch.set_num_threads(1)
            try:
                results = [function(item) for item in items[worker::workers]]
            except Exception as error:
                results = error
            with os.fdopen(there, "wb") as file:
                pickle.dump(results, file)
            os._exit(0)
        os.close(there)
        team.append((pid, here))
    for worker, (pid, here) in enumerate(team):
        with os.fdopen(here, "rb") as file:
            results = pickle.load(file)
        if waits:
            os.waitpid(pid, 0)
        if isinstance(results, Exception):
            failed = results
        else:
            found[worker::workers] = results
    if failed is not None:
        raise failed
    return found


@right("forked by hand")
def forked_by_hand():
    return (lambda function, items, workers: forked(function, items, workers, waits=True),)


@wrong("forked by hand, and nobody waits for the end", "end them, and wait for them")
def nobody_waits():
    return (lambda function, items, workers: forked(function, items, workers, waits=False),)


wrong("tensors are shared in another way from here on", "leaves how processes start and share tensors other", {
    "    fork = ": "    torch.multiprocessing.set_sharing_strategy('file_system')\n    fork = "
})  # fmt: skip
