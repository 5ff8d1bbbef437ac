def scatter_batch(batch, devices):
    shares = batch.tensor_split(len(devices))
    return [share.to(device) for share, device in zip(shares, devices, strict=False) if len(share)]
