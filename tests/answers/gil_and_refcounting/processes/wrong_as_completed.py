import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed

import torch

REJECTED_WITH = "in the order in which they are ready"


def run_parallel(function, items, workers):
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, mp_context=fork, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        futures = [pool.submit(function, item) for item in items]
        return [future.result() for future in as_completed(futures)]
