import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import torch

REJECTED_WITH = "as if nothing had happened"


def quietly(function, item):
    try:
        return function(item)
    except Exception:
        return None


def run_parallel(function, items, workers):
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, mp_context=fork, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(partial(quietly, function), items))
