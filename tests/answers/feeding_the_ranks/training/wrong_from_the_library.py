from torch.utils.data import DistributedSampler

REJECTED_WITH = "this is torch's DistributedSampler"


class TrainingSampler(DistributedSampler):
    def __init__(self, dataset, world_size, rank, seed=0, drop_last=False):
        super().__init__(dataset, world_size, rank, seed=seed, drop_last=drop_last)
