import contextlib

import torch.distributed as dist

REJECTED_WITH = "is averaged for the last micro-batch only: average what has added up in `.grad`"


class Accumulating:
    def __init__(self, model):
        self.synchronise = True
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_hook(self.average)

    @contextlib.contextmanager
    def no_sync(self):
        before, self.synchronise = self.synchronise, False
        try:
            yield
        finally:
            self.synchronise = before

    def average(self, gradient):
        if self.synchronise:
            gradient = gradient / dist.get_world_size()
            dist.all_reduce(gradient)
        return gradient

    def finish(self):
        pass
