import multiprocessing

import torch


def run_parallel(function, items, workers):
    fork = multiprocessing.get_context("fork")
    with fork.Pool(workers, torch.set_num_threads, (1,)) as pool:
        return pool.map(function, items, chunksize=1)
