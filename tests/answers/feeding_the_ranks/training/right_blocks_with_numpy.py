import numpy


class TrainingSampler:
    """Neighbouring blocks of an order that numpy makes; the padding wraps around."""

    def __init__(self, dataset, world_size, rank, seed=0, drop_last=False):
        self.dataset, self.world_size, self.rank, self.seed = dataset, world_size, rank, seed
        self.share = len(dataset) // world_size if drop_last else -(-len(dataset) // world_size)
        self.set_epoch(0)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.share

    def __iter__(self):
        order = numpy.random.default_rng([self.seed, self.epoch]).permutation(len(self.dataset))
        for place in range(self.rank * self.share, (self.rank + 1) * self.share):
            yield int(order[place % len(order)])
