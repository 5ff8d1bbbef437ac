import multiprocessing

import torch


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
    for worker, (here, process) in enumerate(team):
        results = here.recv()
        process.join()
        if isinstance(results, Exception):
            raise results
        found[worker::workers] = results
    return found
