"""The hook of a tensor sees the gradient before it is put into `.grad`."""

import torch.distributed as dist

REJECTED_WITH = "is still this rank's own: the mean does not arrive in `.grad`"


class Overlapped:
    def __init__(self, model):
        self.travelling = []
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_hook(self.launch)

    def launch(self, gradient):
        gradient = gradient / dist.get_world_size()
        self.travelling.append(dist.all_reduce(gradient, async_op=True))

    def finish(self):
        for work in self.travelling:
            work.wait()
        self.travelling.clear()
