import torch.distributed as dist

REJECTED_WITH = "(`square.weight` and `again.weight` are one tensor) travels twice"


class Overlapped:
    def __init__(self, model):
        self.travelling = []
        for _, parameter in model.named_parameters(remove_duplicate=False):
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self.launch)

    def launch(self, parameter):
        self.travelling.append((parameter, dist.all_reduce(parameter.grad, async_op=True)))

    def finish(self):
        for parameter, work in self.travelling:
            work.wait()
            parameter.grad /= dist.get_world_size()
        self.travelling.clear()
