REJECTED_WITH = "GPU 0 has the model already"


def replicate_model(model, devices):
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return [{name: tensor.clone().to(device) for name, tensor in tensors.items()} for device in devices]
