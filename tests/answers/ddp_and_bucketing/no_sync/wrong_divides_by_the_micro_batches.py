import contextlib

import torch.distributed as dist

REJECTED_WITH = "is divided by the 4 micro-batches, too: the training loop has done that"


class Accumulating:
    def __init__(self, model):
        self.model, self.synchronise, self.micro_batches = model, True, 0

    @contextlib.contextmanager
    def no_sync(self):
        before, self.synchronise = self.synchronise, False
        try:
            yield
        finally:
            self.synchronise = before

    def finish(self):
        self.micro_batches += 1
        if self.synchronise:
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size() * self.micro_batches
            self.micro_batches = 0
