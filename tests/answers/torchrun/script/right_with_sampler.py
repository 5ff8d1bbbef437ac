import os

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.utils.data import DistributedSampler


def main(task):
    dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    device = task.gpu(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(dist.get_rank())
    model = torch.nn.Linear(64, 10).to(device)
    if dist.get_rank() == 0:
        torch.manual_seed(0)
        model.reset_parameters()
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    sampler = DistributedSampler(range(task.samples))
    for epoch in range(task.epochs):
        sampler.set_epoch(epoch)
        mine = torch.tensor(list(sampler)).split(task.batch // dist.get_world_size())
        for step, batch in enumerate(mine):
            images, labels = task.read(batch)
            loss = functional.cross_entropy(model(images.to(device)), labels.to(device))
            model.zero_grad()
            (loss / dist.get_world_size()).backward()
            parts = [*(parameter.grad for parameter in model.parameters()), loss.detach() / dist.get_world_size()]
            for part in parts:
                dist.all_reduce(part)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(parameter.grad, alpha=-task.lr)
            if not dist.get_rank():
                print(f"epoch {epoch} step {step} loss {parts[-1].item():.4f}", flush=True)
    if not dist.get_rank():
        with open(task.path, "wb") as file:
            torch.save(model.state_dict(), file)
    dist.barrier()
    dist.destroy_process_group()
