import torch
import torch.distributed as dist

REJECTED_WITH = "broadcasts more than it has to"


def broadcast_state(model):
    state = [[*model.parameters(), *model.buffers()]]
    dist.broadcast_object_list(state, 0)
    with torch.no_grad():
        for mine, theirs in zip([*model.parameters(), *model.buffers()], state[0], strict=True):
            mine.copy_(theirs)


def average_gradients(model):
    for parameter in model.parameters():
        if parameter.requires_grad:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
