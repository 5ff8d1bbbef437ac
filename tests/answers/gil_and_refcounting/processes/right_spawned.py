import multiprocessing

import torch


def run_parallel(function, items, workers):
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(workers, torch.set_num_threads, (1,)) as pool:
        return pool.map(function, items, chunksize=-(-len(items) // workers))
