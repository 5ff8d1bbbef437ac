REJECTED_WITH = "the replicas share it with the model"


def replicate_model(model, devices):
    buffers = dict(model.named_buffers())
    return [buffers | {name: p.to(device) for name, p in model.named_parameters()} for device in devices]
