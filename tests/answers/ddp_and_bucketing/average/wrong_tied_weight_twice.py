import torch.distributed as dist

REJECTED_WITH = "(`square.weight` and `again.weight` are one tensor) travels twice"


def broadcast_state(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), 0)


def average_gradients(model):
    for _, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
