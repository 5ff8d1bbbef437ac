import torch.distributed as dist

REJECTED_WITH = "is the sum over the ranks: divide by the world size, 3"


class Overlapped:
    def __init__(self, model):
        self.travelling = []
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self.launch)

    def launch(self, parameter):
        self.travelling.append((parameter, dist.all_reduce(parameter.grad, async_op=True)))

    def finish(self):
        for _, work in self.travelling:
            work.wait()
        self.travelling.clear()
