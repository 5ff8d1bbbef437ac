import torch
import torch.distributed as dist

REJECTED_WITH = "not every rank raises an error"


def check_length(tensor):
    size = dist.get_world_size()
    if size == 1:
        return
    mine, theirs = torch.tensor([len(tensor)]), torch.tensor([0])
    sending = dist.isend(mine, (dist.get_rank() + 1) % size)
    dist.recv(theirs, (dist.get_rank() - 1) % size)
    sending.wait()
    if mine != theirs:
        raise ValueError(f"my left neighbour has {theirs.item()} elements, I have {mine.item()}")
