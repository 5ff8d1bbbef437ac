import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import torch

REJECTED_WITH = "not shared out evenly"


def run_parallel(function, items, workers):
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, mp_context=fork, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(function, items, chunksize=max(1, len(items) // workers)))
