import multiprocessing
from concurrent.futures import ProcessPoolExecutor

REJECTED_WITH = "each process uses several threads of torch"


def run_parallel(function, items, workers):
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, mp_context=fork) as pool:
        return list(pool.map(function, items))
