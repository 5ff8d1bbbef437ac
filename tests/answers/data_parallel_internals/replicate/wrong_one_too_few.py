REJECTED_WITH = "one dict for each GPU"


def replicate_model(model, devices):
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return [{name: tensor.to(device) for name, tensor in tensors.items()} for device in devices[1:]]
