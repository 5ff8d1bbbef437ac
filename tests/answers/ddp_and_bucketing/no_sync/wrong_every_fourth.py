"""Believes that there are always four micro-batches."""

import contextlib

import torch.distributed as dist

REJECTED_WITH = "starts no all_reduce at all, so every rank keeps its own gradients. See a step with no no_sync() block"


class Accumulating:
    def __init__(self, model):
        self.model, self.synchronise, self.count = model, True, 0

    @contextlib.contextmanager
    def no_sync(self):
        before, self.synchronise = self.synchronise, False
        try:
            yield
        finally:
            self.synchronise = before

    def finish(self):
        self.count += 1
        if self.count % 4 == 0:
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size()
