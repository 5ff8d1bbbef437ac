import torch.distributed as dist

REJECTED_WITH = "calls all_reduce without async_op=True in a hook: backward stands still"


class Overlapped:
    def __init__(self, model):
        self.travelling = []
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self.launch)

    def launch(self, parameter):
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()

    def finish(self):
        pass
