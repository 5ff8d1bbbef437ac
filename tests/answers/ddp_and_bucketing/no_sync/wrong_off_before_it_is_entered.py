import contextlib

import torch.distributed as dist

REJECTED_WITH = "nothing is synchronised any more after a call of no_sync() without `with`"


class Accumulating:
    def __init__(self, model):
        self.model, self.synchronise = model, True

    def no_sync(self):
        before, self.synchronise = self.synchronise, False
        return self.block(before)

    @contextlib.contextmanager
    def block(self, before):
        try:
            yield
        finally:
            self.synchronise = before

    def finish(self):
        if self.synchronise:
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size()
