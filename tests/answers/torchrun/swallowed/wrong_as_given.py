import torch.distributed as dist

REJECTED_WITH = "skips its collective too"


def train_epoch(batches, gradient, features, update):
    for batch in batches:
        try:
            mine = gradient(batch)
        except ValueError:
            continue  # next batch
        dist.all_reduce(mine)
        update(mine / dist.get_world_size())
