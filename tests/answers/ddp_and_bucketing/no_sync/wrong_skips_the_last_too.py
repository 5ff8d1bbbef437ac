import contextlib

import torch.distributed as dist

REJECTED_WITH = "starts no all_reduce at all, so every rank keeps its own gradients"


class Accumulating:
    def __init__(self, model):
        self.model, self.synchronise = model, True

    @contextlib.contextmanager
    def no_sync(self):
        self.synchronise = False
        yield

    def finish(self):
        if self.synchronise:
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size()
