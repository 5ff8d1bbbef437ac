import torch
import torch.distributed as dist

REJECTED_WITH = "talks to ranks that are not its right neighbour"


def check_length(tensor):
    length = torch.tensor([len(tensor)])
    if dist.get_rank() > 0:
        dist.send(length, 0)
        return
    lengths = [len(tensor)]
    for rank in range(1, dist.get_world_size()):
        dist.recv(length, rank)
        lengths.append(length.item())
    if len(set(lengths)) > 1:
        raise ValueError(f"different lengths: {lengths}")
