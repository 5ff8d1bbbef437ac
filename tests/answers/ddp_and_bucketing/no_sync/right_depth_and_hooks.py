"""Counts how deep the blocks are; the hooks overlap, as in exercise 2."""

import torch.distributed as dist


class Quiet:
    def __init__(self, owner):
        self.owner = owner

    def __enter__(self):
        self.owner.depth += 1

    def __exit__(self, *_):
        self.owner.depth -= 1


class Accumulating:
    def __init__(self, model):
        self.depth, self.travelling = 0, []
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self.launch)

    def no_sync(self):
        return Quiet(self)

    def launch(self, parameter):
        if self.depth == 0:
            self.travelling.append((parameter, dist.all_reduce(parameter.grad, async_op=True)))

    def finish(self):
        for parameter, work in self.travelling:
            work.wait()
            parameter.grad /= dist.get_world_size()
        self.travelling.clear()
