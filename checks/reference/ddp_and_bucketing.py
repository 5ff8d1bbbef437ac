import contextlib


import torch


import torch.distributed as dist


from utils import launch


from checks.labs import ddp_and_bucketing as check


def broadcast_state(model):
    ### BEGIN SOLUTION
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), 0)


class Overlapped:
    def __init__(self, model):
        ### BEGIN SOLUTION
        self.travelling = []
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self.launch)
        ### END SOLUTION

    def launch(self, parameter):
        ### BEGIN SOLUTION
        work = dist.all_reduce(parameter.grad, async_op=True)
        self.travelling.append((parameter, work))
        ### END SOLUTION

    def finish(self):
        ### BEGIN SOLUTION
        for parameter, work in self.travelling:
            work.wait()
            parameter.grad /= dist.get_world_size()
        self.travelling.clear()


class Accumulating:
    def __init__(self, model):
        ### BEGIN SOLUTION
        self.model, self.synchronise = model, True
        ### END SOLUTION

    @contextlib.contextmanager
    def no_sync(self):
        ### BEGIN SOLUTION
        before, self.synchronise = self.synchronise, False
        try:
            yield
        finally:
            self.synchronise = before
        ### END SOLUTION

    def finish(self):
        ### BEGIN SOLUTION
        if self.synchronise:
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size()


def average_used(model):
    ### BEGIN SOLUTION
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    used = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int32)
    dist.all_reduce(used)
    for parameter, by_how_many in zip(parameters, used.tolist(), strict=True):
        if by_how_many == 0:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def last_weight(make_optimizer, gradient):
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = make_optimizer([weight])
    for step in range(21):
        weight.grad = torch.ones(1) if step == 0 else gradient
        optimizer.step()
        if step == 0:
            first = weight.item()
    return f"{first:.3f} → {weight.item():.3f}"
