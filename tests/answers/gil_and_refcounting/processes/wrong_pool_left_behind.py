import multiprocessing

import torch

pool = None

REJECTED_WITH = "processes are left behind"


def run_parallel(function, items, workers):
    global pool
    fork = multiprocessing.get_context("fork")
    pool = fork.Pool(workers, torch.set_num_threads, (1,))
    return pool.map(function, items, chunksize=1)
