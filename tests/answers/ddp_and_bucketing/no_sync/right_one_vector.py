"""What finish() calls is exchanged in the block; all gradients in one vector."""

import contextlib

import torch
import torch.distributed as dist


class Accumulating:
    def __init__(self, model):
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.average = self.really

    @contextlib.contextmanager
    def no_sync(self):
        with contextlib.ExitStack() as stack:
            stack.callback(setattr, self, "average", self.average)
            self.average = int
            yield

    def finish(self):
        self.average()

    def really(self):
        vector = torch.nn.utils.parameters_to_vector([parameter.grad for parameter in self.parameters])
        dist.all_reduce(vector)
        vector /= dist.get_world_size()
        for parameter, part in zip(self.parameters, vector.split([p.numel() for p in self.parameters]), strict=True):
            parameter.grad = part.view_as(parameter)
