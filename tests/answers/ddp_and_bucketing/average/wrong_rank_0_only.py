import torch.distributed as dist

REJECTED_WITH = "and nothing more: its step is over on ranks 1, 2"


def broadcast_state(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), 0)


def average_gradients(model):
    for parameter in model.parameters():
        if parameter.requires_grad and dist.get_rank() == 0:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
