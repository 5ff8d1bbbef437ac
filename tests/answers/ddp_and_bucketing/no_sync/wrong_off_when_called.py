"""The object is its own context: the inner block ends the outer one."""

import torch.distributed as dist

REJECTED_WITH = "communicates inside no_sync()"


class Accumulating:
    def __init__(self, model):
        self.model, self.synchronise = model, True

    def no_sync(self):
        self.synchronise = False
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.synchronise = True

    def finish(self):
        if self.synchronise:
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size()
