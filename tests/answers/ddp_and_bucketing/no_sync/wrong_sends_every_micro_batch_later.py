"""Keeps the gradients of all micro-batches and sends each of them."""

import contextlib

import torch.distributed as dist

REJECTED_WITH = "every gradient travels 4 times in a step"


class Accumulating:
    def __init__(self, model):
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.synchronise, self.kept = True, []

    @contextlib.contextmanager
    def no_sync(self):
        before, self.synchronise = self.synchronise, False
        try:
            yield
        finally:
            self.synchronise = before

    def finish(self):
        self.kept.append([parameter.grad.clone() for parameter in self.parameters])
        if not self.synchronise:
            for parameter in self.parameters:
                parameter.grad = None
            return
        for parameter in self.parameters:
            parameter.grad.zero_()
        for gradients in self.kept:
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                dist.all_reduce(gradient)
                parameter.grad += gradient / dist.get_world_size()
        self.kept = []
