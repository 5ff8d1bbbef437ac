import torch
import torch.distributed as dist

REJECTED_WITH = "cut to the shortest one"


def gather_all(predictions):
    world_size = dist.get_world_size()
    lengths = torch.empty(world_size, dtype=torch.int64)
    dist.all_gather_into_tensor(lengths, torch.tensor([len(predictions)]))
    shortest = int(lengths.min())
    parts = [torch.empty(shortest, dtype=torch.int64) for _ in range(world_size)]
    dist.all_gather(parts, predictions[:shortest].contiguous())
    return torch.cat(parts)
