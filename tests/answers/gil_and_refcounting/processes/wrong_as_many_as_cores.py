import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import torch

REJECTED_WITH = "not so many processes as workers"


def run_parallel(function, items, workers):
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(2, mp_context=fork, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(function, items))
