REJECTED_WITH = "a GPU gets each tensor once, one that two layers share too"


def replicate_model(model, devices):
    tensors = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    return [{name: tensor.to(device) for name, tensor in tensors.items()} for device in devices]
