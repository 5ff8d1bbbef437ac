import contextlib

import torch.distributed as dist

REJECTED_WITH = "is not that of one process with the whole batch. See a step with 4 micro-batches"


class Accumulating:
    def __init__(self, model):
        self.model, self.synchronise = model, True

    @contextlib.contextmanager
    def no_sync(self):
        before, self.synchronise = self.synchronise, False
        try:
            yield
        finally:
            self.synchronise = before

    def finish(self):
        for parameter in self.model.parameters():
            if not parameter.requires_grad:
                continue
            if self.synchronise:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
            else:
                parameter.grad = None
