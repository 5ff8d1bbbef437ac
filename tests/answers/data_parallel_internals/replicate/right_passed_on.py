def replicate_model(model, devices):
    replica = {}
    for prefix, module in model.named_modules():
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if not any(tensor is other for other in replica.values()):
                replica[f"{prefix}.{name}".lstrip(".")] = tensor
    replicas = [replica]
    for device in devices[1:]:  # each GPU has its copy from the one before
        replicas.append({name: tensor.to(device) for name, tensor in replicas[-1].items()})
    return replicas
