"""Waits in a callback that autograd calls when backward is at its end."""

import torch
import torch.distributed as dist


class Overlapped:
    def __init__(self, model):
        self.travelling = []
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self.launch)

    def launch(self, parameter):
        if not self.travelling:
            torch.autograd.Variable._execution_engine.queue_callback(self.arrive)
        self.travelling.append((parameter, dist.all_reduce(parameter.grad, async_op=True)))

    def arrive(self):
        for parameter, work in self.travelling:
            work.wait()
            parameter.grad.div_(dist.get_world_size())
        self.travelling = []

    def finish(self):
        """Nothing is left to do: autograd has called ``arrive`` at the end of backward."""
