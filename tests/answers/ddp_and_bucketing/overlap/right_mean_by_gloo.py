"""The collective divides."""

import torch.distributed as dist


class Overlapped:
    def __init__(self, model):
        self.works = []
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self.launch)

    def launch(self, parameter):
        self.works.append(dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG, async_op=True))

    def finish(self):
        while self.works:
            self.works.pop(0).wait()
