REJECTED_WITH = "state_dict leaves out buffers that need not be saved"


def replicate_model(model, devices):
    tensors = model.state_dict(keep_vars=True)
    return [{name: tensor.to(device) for name, tensor in tensors.items()} for device in devices]
