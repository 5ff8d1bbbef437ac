"""Exercise 2 of the lab on sharded data parallelism: an optimizer whose state is one shard. What is not here is in the official solution."""

import torch
import torch.distributed as dist
from known_answers import right, wrong

right("makes its optimizer when the first step comes", {
    "        self.optimizer = make_optimizer([self.shard])\n": "        self.make, self.optimizer = make_optimizer, None\n",
    "        self.optimizer.step()\n": "        self.optimizer = self.optimizer or self.make([self.shard])\n        self.optimizer.step()\n",
})  # fmt: skip


@right("parameters are views of one flat tensor, the shard too")
def views():
    class ShardedOptimizer:
        def __init__(self, parameters, make_optimizer):
            self.parameters, self.ranks = parameters, dist.get_world_size()
            sizes = [one.numel() for one in parameters]
            self.pad = -sum(sizes) % self.ranks
            self.whole = torch.cat(
                [one.data.flatten() for one in parameters] + [torch.zeros(self.pad).to(parameters[0])]
            )
            for one, part in zip(parameters, self.whole.split([*sizes, self.pad]), strict=False):
                one.data = part.view_as(one)
            self.mine = self.whole.chunk(self.ranks)[dist.get_rank()]
            self.optimizer = make_optimizer([self.mine])

        def step(self):
            gradients = [one.grad.flatten() for one in self.parameters]
            whole = torch.cat([*gradients, gradients[0].new_zeros(self.pad)]).div_(self.ranks)
            self.mine.grad = torch.empty_like(self.mine)
            dist.reduce_scatter_single(self.mine.grad, whole)
            self.optimizer.step()
            dist.all_gather_single(self.whole, self.mine)
            self.optimizer.zero_grad()
            for one in self.parameters:
                one.grad = None

    return (ShardedOptimizer,)


@right("lists of chunks, and no tensor is kept but the shard")
def lists():
    class ShardedOptimizer:
        def __init__(self, parameters, make_optimizer):
            self.of = tuple(parameters)
            self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
            self.mine = self.chunks(parameters)[self.rank].clone().requires_grad_()
            self.inner = make_optimizer((self.mine,))

        @torch.no_grad()
        def chunks(self, tensors):
            whole = torch.nn.utils.parameters_to_vector(one.detach().contiguous() for one in tensors)
            return list(torch.nn.functional.pad(whole, (0, -len(whole) % self.ranks)).chunk(self.ranks))

        @torch.no_grad()
        def step(self):
            self.mine.grad = torch.empty_like(self.mine)
            dist.reduce_scatter(self.mine.grad, self.chunks([one.grad for one in self.of]))
            self.mine.grad /= self.ranks
            for one in self.of:
                one.grad = None
            self.inner.step()
            self.mine.grad = None
            parts = [torch.empty_like(self.mine) for _ in range(self.ranks)]
            dist.all_gather(parts, self.mine.detach())
            values, start = torch.cat(parts), 0
            for one in self.of:
                one.copy_(values[start : start + one.numel()].view_as(one))
                start += one.numel()

    return (ShardedOptimizer,)


wrong("a replicated optimizer", "so it is not sharded, but replicated", {
    "        self.shard = torch.nn.Parameter(mine[dist.get_rank()].clone())\n":
    "        self.all = torch.nn.Parameter(torch.cat(mine))\n        self.shard = self.all.detach().chunk(dist.get_world_size())[dist.get_rank()]\n",
    "make_optimizer([self.shard])": "make_optimizer([self.all])",
    "        self.shard.grad = gradient\n":
    "        self.all.grad = gradient.repeat(dist.get_world_size())\n",
})  # fmt: skip
wrong("gathering is not waited for", "never waits for", {"self.shard.detach())": "self.shard.detach(), async_op=True)"})
wrong("flat gradients are kept", "more is held beside the parameters", {
    "        self.shard.grad = gradient\n":
    "        self.shard.grad = gradient\n        self.kept = self.flat(one.grad for one in self.parameters)\n"
})  # fmt: skip
wrong(
    "all optimizers have one shard",
    "RuntimeError",
    {"self.shard": "ShardedOptimizer.shard"},
)
wrong("an optimizer for each step", "that has done a step is kept", {
    "self.optimizer = make_optimizer([self.shard])": "self.make = make_optimizer",
    "self.optimizer.step()": "self.make([self.shard]).step()",
})  # fmt: skip
