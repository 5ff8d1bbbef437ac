"""In the second step it divides those of the first step again."""

import torch.distributed as dist

REJECTED_WITH = "changes a gradient that is still travelling"


class Overlapped:
    def __init__(self, model):
        self.travelling = []
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self.launch)

    def launch(self, parameter):
        self.travelling.append((parameter, dist.all_reduce(parameter.grad, async_op=True)))

    def finish(self):
        for parameter, work in self.travelling:
            work.wait()
            parameter.grad /= dist.get_world_size()
