import os

import torch
import torch.distributed as dist
from torch.nn import functional

REJECTED_WITH = "all do the same work"


def main(task):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    device = task.gpu(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 10).to(device)
    for epoch in range(task.epochs):
        order = torch.randperm(task.samples, generator=torch.Generator().manual_seed(epoch))
        for step, batch in enumerate(order.split(task.batch)):
            images, labels = task.read(batch)
            loss = functional.cross_entropy(model(images.to(device)), labels.to(device))
            model.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
            mean = loss.detach().clone()
            dist.all_reduce(mean, dist.ReduceOp.AVG)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= task.lr * parameter.grad
            if rank == 0:
                print(f"epoch {epoch} step {step} loss {mean.item():.4f}")
    if rank == 0:
        torch.save(model.state_dict(), task.path)
    dist.destroy_process_group()
