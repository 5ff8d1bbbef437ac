import contextlib

import torch.distributed as dist

REJECTED_WITH = (
    "communicates inside no_sync(): there a gradient only adds up on its own rank. The inner of two blocks has ended"
)


class Accumulating:
    def __init__(self, model):
        self.model, self.synchronise = model, True

    @contextlib.contextmanager
    def no_sync(self):
        self.synchronise = False
        try:
            yield
        finally:
            self.synchronise = True

    def finish(self):
        if self.synchronise:
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size()
