"""Exercise 1 of the lab on torchrun: a script for one process becomes one for torchrun."""

# ruff: noqa: F401 (modules that changed answers use)
import os
import time

import torch
import torch.distributed as dist
from known_answers import right, wrong
from torch.distributed import init_process_group as torchs_init
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from utils.training.exit import leave
from utils.training.rendezvous import init_process_group


def main(task):
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = task.gpu(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 10).to(device)
    for epoch in range(task.epochs):
        order = torch.randperm(task.samples, generator=torch.Generator().manual_seed(epoch))
        for step, batch in enumerate(order.split(task.batch)):
            images, labels = task.read(batch[rank::world_size])
            loss = functional.cross_entropy(model(images.to(device)), labels.to(device))
            model.zero_grad()
            loss.backward()
            mean_loss = loss.detach()
            for tensor in (mean_loss, *(parameter.grad for parameter in model.parameters())):
                dist.all_reduce(tensor, dist.ReduceOp.AVG)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= task.lr * parameter.grad
            if rank == 0:
                print(f"epoch {epoch} step {step} loss {mean_loss.item():.4f}")
    if rank == 0:
        torch.save(model.state_dict(), task.path)
    dist.destroy_process_group()


EQUAL = {
    f"34: main with `{effect}`": "the process ends with main"
    for effect in ("torch.manual_seed(0)", "torch.set_grad_enabled(not torch.is_grad_enabled())",
                   "torch.set_default_dtype(torch.float64)", "open('left_behind', 'w').close()")
} | {
    "44: `labels.to(device)` → `labels`": "without a GPU they are there already",
    "44: `images.to(device)` → `images`": "without a GPU they are there already",
    "47: `loss.detach()` → `loss`": "its numbers are averaged in either case",
    "54: `mean_loss.item()` → `mean_loss`": "a tensor with one number is formatted in the same way",
}  # fmt: skip


INIT = '    dist.init_process_group("gloo")\n'
SHARE = "batch[rank::world_size]"
READ = "            images, labels = task.read(batch[rank::world_size])\n"
REDUCE = "                dist.all_reduce(tensor, dist.ReduceOp.AVG)\n"
PRINT = "            if rank == 0:\n                print("
SAVE = "    if rank == 0:\n        torch.save(model.state_dict(), task.path)\n"
END = "    dist.destroy_process_group()"


# --- right, and written differently


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
    "    model = torch.nn.Linear(64, 10).to(device)\n": "    model = DistributedDataParallel(torch.nn.Linear(64, 10).to(device))\n"
    "    optimizer = torch.optim.SGD(model.parameters(), lr=task.lr)\n",
    "for tensor in (mean_loss, *(parameter.grad for parameter in model.parameters())):": "for tensor in (mean_loss,):",
    "            with torch.no_grad():\n                for parameter in model.parameters():\n"
    "                    parameter -= task.lr * parameter.grad\n": "            optimizer.step()\n",
    "model.state_dict()": "model.module.state_dict()",
})  # fmt: skip
right("samples one by one, by torch's function under another name", {
    INIT: '    torchs_init("gloo")\n',
    READ: "            mine = [task.read([sample]) for sample in batch[rank::world_size]]\n"
    "            images, labels = (torch.cat(parts) for parts in zip(*mine, strict=True))\n",
})  # fmt: skip
right("a mesh makes the group, and the GPU is asked for twice", {
    INIT: '    init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))\n    task.gpu(dist.get_node_local_rank())\n'
})  # fmt: skip
right("the environment is read, shares one behind the other", {
    "rank, world_size = dist.get_rank(), dist.get_world_size()": 'rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])',
    SHARE: "batch.view(world_size, -1)[rank]",
})  # fmt: skip


# --- wrong

wrong("all save", "only rank 0 saves", {SAVE: "    torch.save(model.state_dict(), task.path)\n"})
wrong(
    "local rank 0 saves",
    "saves too: each node has a local rank 0",
    {SAVE: SAVE.replace("rank == 0", "int(os.environ['LOCAL_RANK']) == 0")},
)
wrong("reads the data itself", "the course's own code is no answer", {
    INIT: INIT + "    from utils.training.data import digits\n\n    digits()\n"
})  # fmt: skip
wrong("a loop without end", "is there a loop without end", {END: "    while rank:\n        pass"})
wrong("gradients for rank 0 alone", "the losses are not those of one process", {
    REDUCE: "                dist.reduce(tensor, 0)\n                tensor /= world_size\n"
})  # fmt: skip
wrong("saves before the last epoch", "the losses are right, but not the saved weights", {
    SAVE: "",
    "        order =": "        if rank == 0:\n            torch.save(model.state_dict(), task.path)\n        order =",
})  # fmt: skip
wrong("three digits", "other lines than the script in one process", {".4f": ".3f"})
wrong("names of a DistributedDataParallel", "save model.module of a DistributedDataParallel", {
    "    if rank == 0:\n        torch.save(model": "    if rank == 0:\n        model = DistributedDataParallel(model, init_sync=False)\n        torch.save(model",
})  # fmt: skip
wrong("other names", "has other names or shapes", {
    "model.state_dict()": "torch.nn.Sequential(model).state_dict()"
})  # fmt: skip
wrong("a barrier for one", "rank 0 waits in barrier", {END: "    rank or dist.barrier()\n" + END})
wrong("forges what it has read", "main raised AttributeError", {
    READ: READ.replace(SHARE, "batch") + "            task._noted['reads'][-1] = batch[rank::world_size].tolist()\n"
})  # fmt: skip
wrong("weights without their shape", "has other names or shapes", {
    "model.state_dict()": "{name: one.flatten() for name, one in model.state_dict().items()}"
})  # fmt: skip
wrong("a checkpoint of more than the model", "has other names or shapes", {
    "model.state_dict()": '{"model": model.state_dict(), "epoch": epoch}'
})  # fmt: skip
wrong("weights in half precision", "save what the last update has left, as it is", {
    "model.state_dict()": "model.half().state_dict()"
})  # fmt: skip
wrong("a store of one's own", "ranks meet in a store that your program has chosen", {
    INIT: '    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])\n'
    '    store = dist.TCPStore("127.0.0.1", 29512, world_size, rank == 0)\n'
    '    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)\n'
})  # fmt: skip
wrong("lines from the last to the first", "other lines than the script in one process", {
    INIT: INIT + "    lines = []\n", PRINT: PRINT.replace("print(", "lines.insert(0, "), SAVE: "    print('\\n'.join(lines)) if rank == 0 else None\n" + SAVE,
})  # fmt: skip
wrong("rank 0 reads, and scatters", "ranks read different numbers of samples", {
    READ: "            images, labels = torch.empty(len(batch) // world_size, 64), torch.empty(len(batch) // world_size, dtype=torch.int64)\n"
    "            every = [list(one.chunk(world_size)) for one in task.read(batch)] if rank == 0 else [None, None]\n"
    "            for mine, parts in zip((images, labels), every, strict=True):\n                dist.scatter(mine, parts)\n"
})  # fmt: skip
wrong("averages on each node alone", "already before the first update", {
    INIT: INIT + "    per_node, group = int(os.environ['LOCAL_WORLD_SIZE']), None\n"
    "    for first in range(0, dist.get_world_size(), per_node):\n"
    "        made = dist.new_group(range(first, first + per_node))\n"
    "        group = made if first <= dist.get_rank() < first + per_node else group\n",
    "dist.ReduceOp.AVG)": "dist.ReduceOp.AVG, group=group)",
})  # fmt: skip
wrong("nobody saves", "nobody saves", {SAVE: ""})
wrong("the batch grows", "the batch of all ranks together must stay", {
    "order.split(task.batch)": "order.split(task.batch * world_size)"
})  # fmt: skip
wrong("every rank reads all", "all do the same work", {SHARE: "batch"})
wrong("share by local rank", "read the same samples: the local rank is counted on each node", {
    SHARE: "batch[int(os.environ['LOCAL_RANK'])::world_size]"
})  # fmt: skip
wrong("for four ranks", "each sample must be read once", {SHARE: "batch[rank::4]"})
wrong("another order", "do not read the batch of one process", {"manual_seed(epoch)": "manual_seed(epoch + 1)"})
wrong(
    "a port of one's own",
    "MASTER_PORT must stay as torchrun has set it",
    {INIT: '    os.environ["MASTER_PORT"] = "29500"\n' + INIT},
)
wrong("an address of one's own", "names a place that your program has chosen", {
    INIT: '    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29500", rank=int(os.environ["RANK"]), '
    'world_size=int(os.environ["WORLD_SIZE"]))\n'
})  # fmt: skip
wrong("the number of nodes", "world_size= must be WORLD_SIZE", {
    INIT: '    dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["GROUP_WORLD_SIZE"]))\n'
})  # fmt: skip
wrong("nccl", "nccl wants GPUs", {'"gloo"': '"nccl"'})
wrong("no process group", "group", {INIT: ""})
wrong("the rank as GPU", "and no GPU", {'task.gpu(int(os.environ["LOCAL_RANK"]))': "task.gpu(rank)"})
wrong(
    "always GPU 0",
    "must take the GPU with the number of its local rank",
    {'task.gpu(int(os.environ["LOCAL_RANK"]))': "task.gpu(0)"},
)
wrong("gradients are added up", "added up, not averaged", {
    REDUCE: "                dist.all_reduce(tensor)\n            mean_loss /= world_size\n"
})  # fmt: skip
wrong(
    "the loss of rank 0",
    "is not that of the whole batch",
    {"(mean_loss, *(": "(*(", "loss.detach()": "loss.detach().clone()", "parameters())):": "parameters()),):"},
)
wrong("gradients of one parameter", "the losses are not those of one process", {
    "model.parameters())):": "list(model.parameters())[:1])):"
})  # fmt: skip
wrong(
    "local rank 0 prints",
    "prints too: each node has a local rank 0",
    {PRINT: PRINT.replace("rank == 0", "int(os.environ['LOCAL_RANK']) == 0")},
)
wrong("all print", "only rank 0 prints", {PRINT: PRINT.replace("rank == 0", "True")})
wrong("never leaves", "never leaves the process group", {END: "    return"})
wrong("another start", "the losses are not those of one process", {"torch.manual_seed(0)": "torch.manual_seed(1)"})
wrong(
    "a start for each rank",
    "the losses are not those of one process",
    {"torch.manual_seed(0)": "torch.manual_seed(rank)"},
)
wrong("an all-reduce for rank 0 alone", "rank 0 waits in all_reduce", {
    "            for tensor in": "            if rank:\n                continue\n            for tensor in"
})  # fmt: skip
wrong("half precision", "the losses are not those of one process", {
    REDUCE: "                half = tensor.to(torch.bfloat16)\n                dist.all_reduce(half)\n"
    "                tensor.copy_(half / world_size)\n"
})  # fmt: skip
wrong("leaves with an error", "exit code that is not 0", {END: END + "\n    raise SystemExit(3)"})
wrong(
    "the last epoch is not trained", "must be read once in an epoch", {"range(task.epochs)": "range(task.epochs - 1)"}
)
