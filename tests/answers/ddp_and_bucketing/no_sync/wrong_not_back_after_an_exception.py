import contextlib

import torch.distributed as dist

REJECTED_WITH = "nothing is synchronised any more after an exception inside a no_sync() block"


class Accumulating:
    def __init__(self, model):
        self.model, self.synchronise = model, True

    @contextlib.contextmanager
    def no_sync(self):
        before, self.synchronise = self.synchronise, False
        yield
        self.synchronise = before

    def finish(self):
        if self.synchronise:
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size()
