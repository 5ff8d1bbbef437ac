import torch.distributed as dist

REJECTED_WITH = "never waits for 7 of 7 all-reduces"


class Overlapped:
    def __init__(self, model):
        self.travelling = []
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self.launch)

    def launch(self, parameter):
        parameter.grad /= dist.get_world_size()
        dist.all_reduce(parameter.grad, async_op=True)

    def finish(self):
        pass
