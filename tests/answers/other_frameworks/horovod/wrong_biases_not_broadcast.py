REJECTED_WITH = "have different weights at the end"


def train(task):
    import horovod.torch as hvd
    import torch
    from torch.nn import functional

    hvd.init()
    rank, workers = hvd.rank(), hvd.size()
    model = task.model()
    hvd.broadcast_parameters({name: one for name, one in model.named_parameters() if one.dim() > 1}, root_rank=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=task.lr * workers)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    whole = task.batch * workers
    for step in range(task.steps):
        numbers = range(step * whole, (step + 1) * whole)
        images, labels = task.read(numbers[rank::workers])
        loss = functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = hvd.allreduce(loss.detach())
        if rank == 0:
            task.log(step, mean)
    if rank == 0:
        task.save(model)
