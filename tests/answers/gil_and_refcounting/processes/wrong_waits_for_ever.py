import multiprocessing

import torch

REJECTED_WITH = "run_parallel waits for ever"


def share(function, items, results, begin):
    torch.set_num_threads(1)
    for number, item in enumerate(items):
        results.put((begin + number, function(item)))


def run_parallel(function, items, workers):
    fork = multiprocessing.get_context("fork")
    results, processes = fork.SimpleQueue(), []
    size = -(-len(items) // workers)
    for worker in range(workers):
        part = items[worker * size : (worker + 1) * size]
        processes.append(fork.Process(target=share, args=(function, part, results, worker * size)))
        processes[-1].start()
    found = dict(results.get() for _ in items)
    for process in processes:
        process.join()
    return [found[number] for number in sorted(found)]
