import torch
import torch.distributed as dist

REJECTED_WITH = "an epoch needs one collective"


def train_until(most, good, train_epoch, validate):
    for epoch in range(most):
        train_epoch()
        total, count = validate()
        sums = [torch.zeros(2) for _ in range(dist.get_world_size())]
        for source, pair in enumerate(sums):
            if source == dist.get_rank():
                pair.copy_(torch.tensor([total, count]))
            dist.broadcast(pair, src=source)
        total, count = sum(sums).tolist()
        if total / count < good:
            return epoch + 1
    return most
