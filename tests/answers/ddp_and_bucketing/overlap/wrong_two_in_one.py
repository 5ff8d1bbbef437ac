import torch
import torch.distributed as dist

REJECTED_WITH = "sends several gradients in one all_reduce: here each parameter gets its own"


class Overlapped:
    def __init__(self, model):
        self.waiting, self.travelling = [], []
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self.launch)

    def launch(self, parameter):
        self.waiting.append(parameter)
        if len(self.waiting) == 2:
            self.send()

    def send(self):
        vector = torch.cat([parameter.grad.flatten() for parameter in self.waiting])
        self.travelling.append((self.waiting, vector, dist.all_reduce(vector, async_op=True)))
        self.waiting = []

    def finish(self):
        if self.waiting:
            self.send()
        for parameters, vector, work in self.travelling:
            work.wait()
            for parameter, part in zip(parameters, vector.split([p.numel() for p in parameters]), strict=True):
                parameter.grad = part.view_as(parameter) / dist.get_world_size()
        self.travelling.clear()
