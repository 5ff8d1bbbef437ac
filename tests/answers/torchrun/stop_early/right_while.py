import torch
import torch.distributed as dist


def train_until(most, good, train_epoch, validate):
    epochs, loss = 0, float("inf")
    while epochs < most and not loss < good:
        train_epoch()
        epochs += 1
        mine = torch.tensor(validate())
        everyone = torch.empty(dist.get_world_size(), 2)
        dist.all_gather_into_tensor(everyone.flatten(), mine)
        total, count = everyone.sum(dim=0)
        loss = total / count
    return epochs
