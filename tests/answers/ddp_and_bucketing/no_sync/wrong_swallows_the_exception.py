import contextlib

import torch.distributed as dist

REJECTED_WITH = "an exception inside the no_sync() block does not come out"


class Accumulating:
    def __init__(self, model):
        self.model, self.synchronise = model, True

    @contextlib.contextmanager
    def no_sync(self):
        before, self.synchronise = self.synchronise, False
        with contextlib.suppress(Exception):
            yield
        self.synchronise = before

    def finish(self):
        if self.synchronise:
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size()
