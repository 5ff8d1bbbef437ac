from torch.nn.parallel import gather, parallel_apply, replicate, scatter


def data_parallel_forward(model, batch, devices):
    parts = scatter(batch, devices)
    replicas = replicate(model, devices[: len(parts)])
    return gather(parallel_apply(replicas, parts), devices[0])
