import torch
import torch.distributed as dist

REJECTED_WITH = "does not update where its own batch is broken"


def train_epoch(batches, gradient, features, update):
    for batch in batches:
        try:
            mine, good = gradient(batch), 1.0
        except ValueError:
            mine, good = torch.zeros(features), 0.0
        both = torch.cat([mine, torch.tensor([good])])
        dist.all_reduce(both)
        if good:
            update(both[:-1] / both[-1])
