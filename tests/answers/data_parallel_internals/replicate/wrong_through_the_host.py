REJECTED_WITH = "tensors go through the host"


def replicate_model(model, devices):
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    on_host = {name: tensor.cpu() for name, tensor in tensors.items()}
    return [tensors] + [{name: tensor.to(device) for name, tensor in on_host.items()} for device in devices[1:]]
