REJECTED_WITH = "layers may hold layers"


def replicate_model(model, devices):
    replicas = []
    for device in devices:
        replica = {}
        for child, module in model.named_children():
            for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
                replica[f"{child}.{name}"] = tensor.to(device)
        replicas.append(replica)
    return replicas
