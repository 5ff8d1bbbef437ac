def train(task):
    import horovod.torch as hvd
    import torch

    hvd.init()
    model = task.model()
    for parameter in model.parameters():
        hvd.broadcast_(parameter.data, root_rank=0)
    for step in range(task.steps):
        first = (step * hvd.size() + hvd.rank()) * task.batch
        images, labels = task.read(range(first, first + task.batch))
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        totals = hvd.grouped_allreduce([*gradients, loss.detach()], op=hvd.Sum)
        for parameter, total in zip(model.parameters(), totals[:-1], strict=True):
            parameter.data -= task.lr * total
        if hvd.rank() == 0:
            task.log(step, totals[-1] / hvd.size())
    if hvd.rank() == 0:
        task.save(model)
