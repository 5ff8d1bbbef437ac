import torch.distributed as dist

REJECTED_WITH = "this is a blocking DDP: the first all_reduce of rank 0 starts when backward has ended"


class Overlapped:
    def __init__(self, model):
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def finish(self):
        for parameter in self.parameters:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
