import torch
import torch.distributed as dist

REJECTED_WITH = "first all ranks learn all lengths, then they raise"


def check_length(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    lengths = [torch.tensor([len(tensor)]) for _ in range(size)]
    for step in range(size - 1):
        sending = dist.isend(lengths[(rank - step) % size], (rank + 1) % size)
        dist.recv(lengths[(rank - step - 1) % size], (rank - 1) % size)
        sending.wait()
        if lengths[(rank - step - 1) % size] != len(tensor):
            raise ValueError(f"rank {(rank - step - 1) % size} has another length than I")
