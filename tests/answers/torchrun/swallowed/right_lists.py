import torch
import torch.distributed as dist


def train_epoch(batches, gradient, features, update):
    for batch in batches:
        mine = torch.full((features,), torch.nan)
        try:
            mine = gradient(batch)
        except ValueError:
            pass
        everyone = torch.empty(dist.get_world_size(), features)
        dist.all_gather_into_tensor(everyone.flatten(), mine)
        everyone = everyone[~everyone.isnan().any(dim=1)]
        if len(everyone):
            update(everyone.mean(dim=0))
