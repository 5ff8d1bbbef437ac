"""Exercise 1 of the lab on torchrun: a script for torchrun. What is not here is in the official solution."""

from known_answers import right, wrong

INIT, SHARE, END = (
    '    dist.init_process_group("gloo")\n',
    "batch[rank::world_size]",
    "    dist.destroy_process_group()",
)
SAVE = "    if rank == 0:\n        torch.save(model.state_dict(), task.path)\n"
READ = "            images, labels = task.read(batch[rank::world_size])\n"
SEED = "    torch.manual_seed(0)\n    model = torch.nn.Linear(64, 10).to(device)\n"
ORDER = "        order = torch.randperm(task.samples, generator=torch.Generator().manual_seed(epoch))\n"
EACH = "            for tensor in (mean_loss, *(parameter.grad for parameter in model.parameters())):\n"
AVERAGE = "                dist.all_reduce(tensor, dist.ReduceOp.AVG)\n"
right("a sampler, a start that is broadcast, sums instead of means, and an open file", {
    SEED: SEED.replace("seed(0)", "seed(rank)") + "    if rank == 0:\n        torch.manual_seed(0)\n"
          "        model.reset_parameters()\n"
          "    for parameter in model.parameters():\n        dist.broadcast(parameter.data, src=0)\n",
    ORDER: "        sampler = torch.utils.data.DistributedSampler(range(task.samples))\n"
           "        sampler.set_epoch(epoch)\n        order = torch.tensor(list(sampler))\n",
    "order.split(task.batch)": "order.split(task.batch // world_size)", SHARE: "batch",
    AVERAGE: "                tensor /= world_size\n                dist.all_reduce(tensor)\n",
    "torch.save(model.state_dict(), task.path)":
        "\n        with open(task.path, 'wb') as file:\n            torch.save(model.state_dict(), file)",
})  # fmt: skip
right("the course's helpers, one tensor for all", {
    INIT: "    from utils.training.exit import leave\n    from utils.training.rendezvous import init_process_group\n\n"
          '    init_process_group("gloo")\n',
    SHARE: "batch.chunk(world_size)[rank]",
    EACH + AVERAGE: "            grads = [parameter.grad for parameter in model.parameters()]\n"
        "            flat = torch.cat([mean_loss.reshape(1), *(grad.flatten() for grad in grads)])\n"
        "            dist.all_reduce(flat)\n            mean_loss, *flat = (flat / world_size).split([1, *map(torch.numel, grads)])\n"
        "            for grad, new in zip(grads, flat, strict=True):\n                grad.copy_(new.view_as(grad))\n",
    END: "    leave()",
})  # fmt: skip
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
wrong("a checkpoint of more than the model", "the names in the saved state", {
    "model.state_dict()": '{"model": model.state_dict(), "epoch": epoch}'
})  # fmt: skip
wrong("leaves with an error", "exit code that is not 0", {END: END + "\n    os._exit(3)"})
wrong("the number of nodes", "is not what torchrun says", {
    INIT: '    dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["GROUP_WORLD_SIZE"]))\n'
})  # fmt: skip
wrong("a store of one's own", "in a store that your program has chosen", {
    INIT: '    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])\n'
    '    store = dist.TCPStore("127.0.0.1", 29512, world_size, rank == 0)\n'
    '    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)\n'
})  # fmt: skip
