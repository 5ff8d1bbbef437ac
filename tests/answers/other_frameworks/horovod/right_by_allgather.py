def train(task):
    import horovod.torch as hvd
    import torch

    hvd.init()
    model, workers = task.model(), hvd.size()
    start = hvd.allgather(torch.nn.utils.parameters_to_vector(model.parameters()).detach()[None])[0]
    torch.nn.utils.vector_to_parameters(start.clone(), model.parameters())
    for step in range(task.steps):
        first = (step * workers + hvd.rank()) * task.batch
        images, labels = task.read(range(first, first + task.batch))
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        mine = torch.cat([*(gradient.flatten() for gradient in gradients), loss.detach()[None]])
        mean = hvd.allgather(mine[None]).mean(dim=0)
        with torch.no_grad():
            flat = torch.nn.utils.parameters_to_vector(model.parameters())
            torch.nn.utils.vector_to_parameters(flat - task.lr * workers * mean[:-1], model.parameters())
        if hvd.rank() == 0:
            task.log(step, mean[-1])
    if hvd.rank() == 0:
        task.save(model)
