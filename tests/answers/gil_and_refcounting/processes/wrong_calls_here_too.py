import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import torch

REJECTED_WITH = "the process that calls does the work itself"


def run_parallel(function, items, workers):
    function(items[0])  # to warm up
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, mp_context=fork, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(function, items))
