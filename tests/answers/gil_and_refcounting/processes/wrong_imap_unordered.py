import multiprocessing

import torch

REJECTED_WITH = "in the order in which they are ready"


def run_parallel(function, items, workers):
    fork = multiprocessing.get_context("fork")
    with fork.Pool(workers, torch.set_num_threads, (1,)) as pool:
        return list(pool.imap_unordered(function, items))
