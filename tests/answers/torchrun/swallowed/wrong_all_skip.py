import torch
import torch.distributed as dist

REJECTED_WITH = "throws the good batches of the other ranks away"


def train_epoch(batches, gradient, features, update):
    for batch in batches:
        try:
            mine, good = gradient(batch), 1.0
        except ValueError:
            mine, good = torch.zeros(features), 0.0
        everyone = torch.tensor([good])
        dist.all_reduce(everyone, dist.ReduceOp.MIN)
        if everyone > 0:
            dist.all_reduce(mine, dist.ReduceOp.AVG)
            update(mine)
