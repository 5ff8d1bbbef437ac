import torch
import torch.distributed as dist

REJECTED_WITH = "The padding is still in it"


def gather_all(predictions):
    world_size = dist.get_world_size()
    lengths = torch.empty(world_size, dtype=torch.int64)
    dist.all_gather_into_tensor(lengths, torch.tensor([len(predictions)]))
    longest = int(lengths.max())
    padded = torch.zeros(longest, dtype=torch.int64)
    padded[: len(predictions)] = predictions
    parts = [torch.empty_like(padded) for _ in range(world_size)]
    dist.all_gather(parts, padded)
    return torch.cat(parts)
