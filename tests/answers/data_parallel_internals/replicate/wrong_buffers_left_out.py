REJECTED_WITH = "a replica has buffers too"


def replicate_model(model, devices):
    return [{name: parameter.to(device) for name, parameter in model.named_parameters()} for device in devices]
