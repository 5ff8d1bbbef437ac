import multiprocessing

import torch

REJECTED_WITH = "each item is computed once"


def share(function, items):
    torch.set_num_threads(1)
    return [function(item) for item in items]


def run_parallel(function, items, workers):
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        return pool.starmap(share, [(function, items)] * workers)[0]
