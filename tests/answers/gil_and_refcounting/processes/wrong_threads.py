from concurrent.futures import ThreadPoolExecutor

REJECTED_WITH = "which share one GIL"


def run_parallel(function, items, workers):
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(function, items))
