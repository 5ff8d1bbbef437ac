import torch.distributed as dist

REJECTED_WITH = "the tied weight has two names, but it is one tensor"


def broadcast_state(model):
    for tensor in [*model.state_dict().values(), model.mask]:
        dist.broadcast(tensor, 0)


def average_gradients(model):
    for parameter in model.parameters():
        if parameter.requires_grad:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
