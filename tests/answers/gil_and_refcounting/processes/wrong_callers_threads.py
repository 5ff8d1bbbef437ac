import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import torch

REJECTED_WITH = "the process that calls has lost its threads"


def run_parallel(function, items, workers):
    torch.set_num_threads(1)
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, mp_context=fork) as pool:
        return list(pool.map(function, items))
