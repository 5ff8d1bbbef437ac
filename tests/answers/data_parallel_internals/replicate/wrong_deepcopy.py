import copy

REJECTED_WITH = "gradients end there and never reach the model"


def replicate_model(model, devices):
    replicas = []
    for device in devices:
        twin = model if device == devices[0] else copy.deepcopy(model).to(device)
        replicas.append(dict(twin.named_parameters()) | dict(twin.named_buffers()))
    return replicas
