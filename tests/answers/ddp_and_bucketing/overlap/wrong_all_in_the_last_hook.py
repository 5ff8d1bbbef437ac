import torch.distributed as dist

REJECTED_WITH = "launches all its all-reduces when the last gradient is ready"


class Overlapped:
    def __init__(self, model):
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.ready, self.works = 0, []
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(self.count)

    def count(self, parameter):
        self.ready += 1
        if self.ready == len(self.parameters):
            self.works = [dist.all_reduce(parameter.grad, async_op=True) for parameter in self.parameters]

    def finish(self):
        for work, parameter in zip(self.works, self.parameters, strict=True):
            work.wait()
            parameter.grad /= dist.get_world_size()
        self.ready = 0
