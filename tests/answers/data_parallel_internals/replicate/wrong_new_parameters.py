from torch import nn

REJECTED_WITH = "gradients end there and never reach the model"


def replicate_model(model, devices):
    buffers = dict(model.named_buffers())
    replicas = []
    for device in devices:
        replica = {name: nn.Parameter(p.to(device)) for name, p in model.named_parameters()}
        replicas.append(replica | {name: b.to(device) for name, b in buffers.items()})
    return replicas
