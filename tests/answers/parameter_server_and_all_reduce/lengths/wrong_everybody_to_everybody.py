import torch
import torch.distributed as dist

REJECTED_WITH = "talks to ranks that are not its right neighbour"


def check_length(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    mine, lengths = torch.tensor([len(tensor)]), []
    sending = [dist.isend(mine, other) for other in range(size) if other != rank]
    for other in range(size):
        theirs = mine.clone()
        if other != rank:
            dist.recv(theirs, other)
        lengths.append(theirs.item())
    for work in sending:
        work.wait()
    if len(set(lengths)) > 1:
        raise ValueError(f"different lengths: {lengths}")
