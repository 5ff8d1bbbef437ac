import torch

REJECTED_WITH = "knows nothing of the model's parameter"


@torch.no_grad()
def replicate_model(model, devices):
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return [{name: tensor.to(device) for name, tensor in tensors.items()} for device in devices]
