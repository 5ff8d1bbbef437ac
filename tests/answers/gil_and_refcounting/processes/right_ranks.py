import torch
import torch.distributed as dist

from utils import launch


def share(function, items):
    torch.set_num_threads(1)
    return [function(item) for item in items[dist.get_rank() :: dist.get_world_size()]]


def run_parallel(function, items, workers):
    shares = launch(share, function, items, ranks=workers)
    return [shares[number % workers][number // workers] for number in range(len(items))]
