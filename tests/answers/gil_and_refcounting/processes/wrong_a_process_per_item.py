import multiprocessing

import torch

REJECTED_WITH = "each costs time and memory to start"


def run_parallel(function, items, workers):
    fork = multiprocessing.get_context("fork")
    with fork.Pool(workers, torch.set_num_threads, (1,), maxtasksperchild=1) as pool:
        return pool.map(function, items, chunksize=1)
