REJECTED_WITH = "knows nothing of the model's parameter"


def replicate_model(model, devices):
    return [{name: tensor.to(device) for name, tensor in model.state_dict().items()} for device in devices]
