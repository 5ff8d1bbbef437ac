REJECTED_WITH = "rows go through the host"


def scatter_batch(batch, devices):
    return [part.to(device) for part, device in zip(batch.cpu().chunk(len(devices)), devices, strict=False)]
