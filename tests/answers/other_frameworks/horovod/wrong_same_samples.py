REJECTED_WITH = "all workers read the same samples"


def train(task):
    import horovod.torch as hvd
    import torch
    from torch.nn import functional

    hvd.init()
    rank, workers = hvd.rank(), hvd.size()
    model = task.model()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=task.lr * workers)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    for step in range(task.steps):
        images, labels = task.read(range(step * task.batch, (step + 1) * task.batch))
        loss = functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = hvd.allreduce(loss.detach())
        if rank == 0:
            task.log(step, mean)
    if rank == 0:
        task.save(model)
