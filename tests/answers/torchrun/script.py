"""Exercise 1 of the lab on torchrun: a script for torchrun. What is not here is in the official solution."""

from known_answers import right, wrong

INIT, SHARE, END = (
    '    dist.init_process_group("gloo")\n',
    "batch[rank::world_size]",
    "    dist.destroy_process_group()",
)
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


wrong(
    "the rank as GPU",
    "take the one with your local rank",
    {'task.gpu(int(os.environ["LOCAL_RANK"]))': "task.gpu(rank)"},
)
wrong("no process group", "group", {INIT: ""})
wrong("a port of one's own", "MASTER_PORT must stay", {INIT: '    os.environ["MASTER_PORT"] = "29500"\n' + INIT})
wrong("an all-reduce for rank 0 alone", "rank 0 waits in all_reduce", {
    "            for tensor in": "            if rank:\n                continue\n            for tensor in"
})  # fmt: skip
wrong("averages on each node alone", "the printed losses", {
    INIT: INIT + "    per_node, group = int(os.environ['LOCAL_WORLD_SIZE']), None\n"
    "    for first in range(0, dist.get_world_size(), per_node):\n"
    "        made = dist.new_group(range(first, first + per_node))\n"
    "        group = made if first <= dist.get_rank() < first + per_node else group\n",
    "dist.ReduceOp.AVG)": "dist.ReduceOp.AVG, group=group)",
})  # fmt: skip
