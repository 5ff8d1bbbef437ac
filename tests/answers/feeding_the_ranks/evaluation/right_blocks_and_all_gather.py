import torch
import torch.distributed as dist


class EvaluationSampler:
    """Neighbouring samples; the first ranks have one more."""

    def __init__(self, dataset, world_size, rank):
        share, rest = divmod(len(dataset), world_size)
        self.start = rank * share + min(rank, rest)
        self.count = share + (rank < rest)

    def __len__(self):
        return self.count

    def __iter__(self):
        yield from range(self.start, self.start + self.count)


def accuracy(correct, seen):
    mine = torch.tensor([correct, seen], dtype=torch.float32)
    everyone = [torch.empty(2) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    right, count = torch.stack(everyone).sum(0).tolist()
    return right / count
