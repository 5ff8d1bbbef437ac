import torch

REJECTED_WITH = "the answer uses DistributedDataParallel: write it yourself"


class Overlapped:
    def __init__(self, model):
        self.ddp = torch.nn.parallel.DistributedDataParallel(model)

    def finish(self):
        pass
