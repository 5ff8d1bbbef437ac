REJECTED_WITH = "the model itself has moved"


def replicate_model(model, devices):
    replicas = []
    for device in devices:
        twin = model.to(device)
        replicas.append(dict(twin.named_parameters()) | dict(twin.named_buffers()))
    return replicas
