REJECTED_WITH = "a copy's statistics are lost"


def replicate_model(model, devices):
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    return [
        {name: p.to(device) for name, p in parameters.items()}
        | {name: b.to(device, copy=True) for name, b in buffers.items()}
        for device in devices
    ]
