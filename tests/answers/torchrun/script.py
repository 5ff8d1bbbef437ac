"""Exercise 1 of the lab on torchrun: a script for torchrun. What is not here is in the official solution."""

import os

import torch
import torch.distributed as dist
from known_answers import right, wrong
from torch.nn import functional
from torch.utils.data import DistributedSampler

from utils.training.exit import leave
from utils.training.rendezvous import init_process_group

INIT, SHARE, END = (
    '    dist.init_process_group("gloo")\n',
    "batch[rank::world_size]",
    "    dist.destroy_process_group()",
)
SAVE = "    if rank == 0:\n        torch.save(model.state_dict(), task.path)\n"
READ = "            images, labels = task.read(batch[rank::world_size])\n"


@right("a sampler, sums instead of means, and an open file")
def with_sampler():
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

    return (main,)


@right("the course's helpers, one tensor for all")
def with_helpers():
    def is_first():
        return os.environ["RANK"] == "0"

    def main(task):
        init_process_group("gloo")
        device = task.gpu(int(os.environ["LOCAL_RANK"]))
        torch.manual_seed(0)
        model = torch.nn.Linear(64, 10).to(device)
        for epoch in range(task.epochs):
            order = torch.randperm(task.samples, generator=torch.Generator().manual_seed(epoch))
            for step, batch in enumerate(order.split(task.batch)):
                images, labels = task.read(batch.chunk(dist.get_world_size())[dist.get_rank()])
                loss = functional.cross_entropy(model(images.to(device)), labels.to(device))
                gradients = torch.autograd.grad(loss, list(model.parameters()))
                flat = torch.cat([loss.detach().reshape(1), *(gradient.flatten() for gradient in gradients)])
                dist.all_reduce(flat)
                flat /= dist.get_world_size()
                with torch.no_grad():
                    torch.nn.utils.vector_to_parameters(
                        torch.nn.utils.parameters_to_vector(model.parameters()) - task.lr * flat[1:], model.parameters()
                    )
                if is_first():
                    print(f"epoch {epoch} step {step} loss {flat[0].item():.4f}")
        if is_first():
            torch.save(model.state_dict(), task.path)
        leave()

    return (main,)


right("DistributedDataParallel and an optimizer", {
    "    model = torch.nn.Linear(64, 10).to(device)\n": "    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 10).to(device))\n"
    "    optimizer = torch.optim.SGD(model.parameters(), lr=task.lr)\n",
    "for tensor in (mean_loss, *(parameter.grad for parameter in model.parameters())):": "for tensor in (mean_loss,):",
    "            with torch.no_grad():\n                for parameter in model.parameters():\n"
    "                    parameter -= task.lr * parameter.grad\n": "            optimizer.step()\n",
    "model.state_dict()": "model.module.state_dict()",
})  # fmt: skip

right("samples one by one, by torch's function under another name", {
    INIT: '    dist.distributed_c10d.init_process_group("gloo")\n',
    READ: "            mine = [task.read([sample]) for sample in batch[rank::world_size]]\n"
    "            images, labels = (torch.cat(parts) for parts in zip(*mine, strict=True))\n",
})  # fmt: skip

right("a mesh makes the group, and the GPU is asked for twice", {
    INIT: '    dist.device_mesh.init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))\n    task.gpu(dist.get_node_local_rank())\n'
})  # fmt: skip

right("the environment is read, shares one behind the other", {
    "rank, world_size = dist.get_rank(), dist.get_world_size()": 'rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])',
    SHARE: "batch.view(world_size, -1)[rank]",
})  # fmt: skip

wrong(
    "the rank as GPU",
    "take the one with your local rank",
    {'task.gpu(int(os.environ["LOCAL_RANK"]))': "task.gpu(rank)"},
)
wrong("no process group", "group", {INIT: ""})
wrong("a port of one's own", "MASTER_PORT must stay", {INIT: '    os.environ["MASTER_PORT"] = "29500"\n' + INIT})
wrong("an address of one's own", "names a place that your program has chosen", {
    INIT: '    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29500", rank=int(os.environ["RANK"]), '
    'world_size=int(os.environ["WORLD_SIZE"]))\n'
})  # fmt: skip
wrong("for four ranks", "number of samples", {SHARE: "batch[rank::4]"})
wrong("an all-reduce for rank 0 alone", "rank 0 waits in all_reduce", {
    "            for tensor in": "            if rank:\n                continue\n            for tensor in"
})  # fmt: skip
wrong("a barrier for one", "rank 0 waits in barrier", {END: "    rank or dist.barrier()\n" + END})
wrong("averages on each node alone", "the printed losses", {
    INIT: INIT + "    per_node, group = int(os.environ['LOCAL_WORLD_SIZE']), None\n"
    "    for first in range(0, dist.get_world_size(), per_node):\n"
    "        made = dist.new_group(range(first, first + per_node))\n"
    "        group = made if first <= dist.get_rank() < first + per_node else group\n",
    "dist.ReduceOp.AVG)": "dist.ReduceOp.AVG, group=group)",
})  # fmt: skip
wrong("a checkpoint of more than the model", "the saved weights", {
    "model.state_dict()": '{"model": model.state_dict(), "epoch": epoch}'
})  # fmt: skip
wrong("leaves with an error", "exit code that is not 0", {END: END + "\n    os._exit(3)"})
