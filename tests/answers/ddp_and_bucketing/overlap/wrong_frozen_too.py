import torch.distributed as dist

REJECTED_WITH = "cannot register a hook on a tensor that doesn't require gradient"


class Overlapped:
    def __init__(self, model):
        self.travelling = []
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self.launch)

    def launch(self, parameter):
        self.travelling.append((parameter, dist.all_reduce(parameter.grad, async_op=True)))

    def finish(self):
        for parameter, work in self.travelling:
            work.wait()
            parameter.grad /= dist.get_world_size()
        self.travelling.clear()
