"""Exercise 5 of the lab on the GIL and reference counts: items for processes. What is not here is in the official solution."""

import multiprocessing
import os
import pickle

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


def piped(together):
    def share(function, items, end):
        torch.set_num_threads(1)
        try:
            end.send([function(item) for item in items])
        except Exception as error:
            end.send([error])

    def run_parallel(function, items, workers):
        fork, found, team = multiprocessing.get_context("fork"), [None] * len(items), []
        for worker in range(workers):
            here, there = fork.Pipe()
            team.append((here, fork.Process(target=share, args=(function, items[worker::workers], there))))
            team[-1][1].start()
            if not together:
                found[worker::workers] = here.recv()
        failed = []
        for worker, (here, process) in enumerate(team):
            results = here.recv() if together else ()
            process.join()
            failed += [one for one in results if isinstance(one, LookupError)]
            if together and not failed:
                found[worker::workers] = results
        if failed:
            raise failed[0]
        return found

    return (run_parallel,)


@right("pipes")
def pipes():
    return piped(together=True)


@wrong("one after the other", "do not work at the same time")
def one_after_the_other():
    return piped(together=False)


@right("ranks")
def ranks():
    def share(function, items):
        torch.set_num_threads(1)
        return [function(item) for item in items[dist.get_rank() :: dist.get_world_size()]]

    def run_parallel(function, items, workers):
        shares = launch(share, function, items, ranks=workers)
        return [shares[number % workers][number // workers] for number in range(len(items))]

    return (run_parallel,)


def forked(waits):
    def run_parallel(function, items, workers):
        team, found, failed = [], [None] * len(items), []
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
                failed.append(results)
            else:
                found[worker::workers] = results
        if failed:
            raise failed[0]
        return found

    return (run_parallel,)


@right("forked by hand")
def forked_by_hand():
    return forked(waits=True)


@wrong("forked by hand, and nobody waits for the end", "end them, and wait for them")
def nobody_waits():
    return forked(waits=False)


def shares(function, items, results, begin):
    torch.set_num_threads(1)
    for number, item in enumerate(items):
        results.put((begin + number, function(item)))


def queued(size_of, joined_first=False):
    def run_parallel(function, items, workers):
        fork = multiprocessing.get_context("fork")
        results, team, size = fork.SimpleQueue(), [], size_of(len(items), workers)
        for worker in range(workers):
            part = items[worker * size : (worker + 1) * size]
            team.append(fork.Process(target=shares, args=(function, part, results, worker * size)))
            team[-1].start()
        if joined_first:
            [process.join() for process in team]
        found = dict(results.get() for _ in range(min(len(items), size * workers)))
        [process.join() for process in team]
        return [found[number] for number in sorted(found)]

    return (run_parallel,)


@wrong("the rest is lost", "items are never computed")
def the_rest_is_lost():
    return queued(lambda items, workers: items // workers)


@wrong("joined before the results are read", "waits for ever")
def joined_first():
    return queued(lambda items, workers: -(-items // workers), joined_first=True)


@wrong("waits for a worker that has failed", "waits for ever")
def waits_for_ever():
    return queued(lambda items, workers: -(-items // workers))


wrong("a loop", "one after the other", {FORK + WITH: "    return [function(item) for item in items]"})
wrong("threads", "which share one GIL", {POOL: "ThreadPoolExecutor(workers)"})
wrong("called here too", "does the work itself", {FORK: FORK + "    function(items[0]) if items else None\n"})
wrong("the caller's threads", "has lost its threads", {FORK: "    torch.set_num_threads(1)\n" + FORK, INITIAL: ""})
wrong("many threads each", "several threads of torch", {INITIAL: ""})
wrong("two workers", "not so many processes as workers", {"Executor(workers,": "Executor(2,"})
wrong("a process per item", "each costs time and memory to start", OTHER_POOL | {
    "(1,))": "(1,), maxtasksperchild=1)", MAP: "pool.map(function, items, chunksize=1)"
})  # fmt: skip
wrong("uneven chunks", "not shared out evenly", {
    MAP: "list(pool.map(function, items, chunksize=max(1, len(items) // workers)))"
})  # fmt: skip
wrong(
    "unordered", "the order in which they are ready", OTHER_POOL | {MAP: "list(pool.imap_unordered(function, items))"}
)
wrong("by a dict of items", "raised TypeError", {
    MAP: "list(map(dict(zip(items, pool.map(function, items))).get, items))"
})  # fmt: skip
wrong("nothing is no result", "raised", {FORK: FORK + "    if not items:\n        raise ValueError('no items')\n"})
wrong(
    "None is no result",
    "one result for each item",
    {MAP: "[one for one in pool.map(function, items) if one is not None]"},
)
wrong("a tuple", "returns a list", {MAP: "tuple(pool.map(function, items))"})
wrong("errors swallowed", "as if nothing had happened", {
    "def run_parallel": "def quietly(function, item):\n    try:\n        return function(item)\n    except Exception:\n        return None\n\n\ndef run_parallel",
    "pool.map(function, items)": "pool.map(quietly, [function] * len(items), items)"
})  # fmt: skip
wrong("a pool left behind", "processes are left behind", {
    FORK + WITH: FORK + "    global pool\n    pool = fork.Pool(workers, torch.set_num_threads, (1,))\n    return pool.map(function, items, 1)"
})  # fmt: skip
wrong("items taken away", "changes `items`", {FORK: FORK + "    items.append(items.pop(0)) if items else None\n"})
