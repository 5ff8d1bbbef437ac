import torch
import torch.distributed as dist


def train_epoch(batches, gradient, features, update):
    for batch in batches:
        try:
            mine, good = gradient(batch), 1.0
        except ValueError:
            mine, good = torch.zeros(features), 0.0
        count = torch.tensor(good)
        dist.all_reduce(count)
        dist.all_reduce(mine)
        if count:
            update(mine / count)
