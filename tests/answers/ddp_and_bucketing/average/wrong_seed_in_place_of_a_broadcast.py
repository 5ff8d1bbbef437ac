import torch
import torch.distributed as dist

REJECTED_WITH = "is neither its own nor rank 0's"


def broadcast_state(model):
    torch.manual_seed(0)
    for layer in model.modules():
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()


def average_gradients(model):
    for parameter in model.parameters():
        if parameter.requires_grad:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
