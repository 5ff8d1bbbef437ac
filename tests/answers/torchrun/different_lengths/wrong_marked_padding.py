import torch
import torch.distributed as dist

REJECTED_WITH = "no value can mark the padding"


def gather_all(predictions):
    world_size = dist.get_world_size()
    lengths = torch.empty(world_size, dtype=torch.int64)
    dist.all_gather_into_tensor(lengths, torch.tensor([len(predictions)]))
    longest = int(lengths.max())
    padded = torch.full((longest,), -1)
    padded[: len(predictions)] = predictions
    parts = [torch.empty_like(padded) for _ in range(world_size)]
    dist.all_gather(parts, padded)
    everything = torch.cat(parts)
    return everything[everything != -1]
