"""A copy travels, and takes the place of the gradient."""

import torch.distributed as dist


class Overlapped:
    def __init__(self, model):
        self.copies = {}
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_hook(lambda gradient, parameter=parameter: self.launch(parameter, gradient))

    def launch(self, parameter, gradient):
        copy = gradient / dist.get_world_size()
        self.copies[parameter] = copy, dist.all_reduce(copy, async_op=True)

    def finish(self):
        for parameter, (copy, work) in self.copies.items():
            work.wait()
            parameter.grad = copy
