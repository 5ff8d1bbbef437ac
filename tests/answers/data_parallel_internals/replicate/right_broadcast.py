from torch.nn.parallel._functions import Broadcast


def replicate_model(model, devices):
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    copies = Broadcast.apply(devices, *parameters.values())
    replicas = []
    for index, device in enumerate(devices):
        mine = copies[index * len(parameters) : (index + 1) * len(parameters)]
        replica = dict(zip(parameters, mine, strict=False))
        replica.update((name, buffer.to(device)) for name, buffer in buffers.items())
        replicas.append(replica)
    return replicas
