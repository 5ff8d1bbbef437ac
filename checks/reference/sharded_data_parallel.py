import torch


import torch.distributed as dist


from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


from utils import launch


from checks.labs import sharded_data_parallel as check


def reduce_gradients(parameters):
    ### BEGIN SOLUTION
    ranks = dist.get_world_size()
    flat = [parameter.grad.flatten() for parameter in parameters]
    padding = -sum(one.numel() for one in flat) % ranks
    whole = torch.cat([*flat, flat[0].new_zeros(padding)])
    shard = whole.new_empty(whole.numel() // ranks)
    dist.reduce_scatter_single(shard, whole, dist.ReduceOp.AVG)
    for parameter in parameters:
        parameter.grad = None
    return shard


class ShardedOptimizer:
    def __init__(self, parameters, make_optimizer):
        ### BEGIN SOLUTION
        self.parameters = list(parameters)
        self.sizes = [parameter.numel() for parameter in self.parameters]
        self.padding = -sum(self.sizes) % dist.get_world_size()
        mine = self.flat(parameter.detach() for parameter in self.parameters).chunk(dist.get_world_size())
        self.shard = torch.nn.Parameter(mine[dist.get_rank()].clone())
        self.optimizer = make_optimizer([self.shard])
        ### END SOLUTION

    ### BEGIN SOLUTION
    def flat(self, tensors):
        flat = [one.flatten() for one in tensors]
        return torch.cat([*flat, flat[0].new_zeros(self.padding)])

    ### END SOLUTION
    @torch.no_grad()
    def step(self):
        ### BEGIN SOLUTION
        gradient = torch.empty_like(self.shard)
        dist.reduce_scatter_single(gradient, self.flat(one.grad for one in self.parameters), dist.ReduceOp.AVG)
        self.shard.grad = gradient
        self.optimizer.step()
        self.shard.grad = None
        whole = torch.empty(sum(self.sizes) + self.padding, dtype=self.shard.dtype)
        dist.all_gather_single(whole, self.shard.detach())
        for parameter, part in zip(self.parameters, whole.split([*self.sizes, self.padding]), strict=False):
            parameter.copy_(part.view_as(parameter))
            parameter.grad = None


def clip_shards(shards, max_norm):
    ### BEGIN SOLUTION
    squares = torch.zeros((), dtype=torch.float64)
    for shard in shards:
        squares += shard.double().square().sum()
    dist.all_reduce(squares)
    norm = squares.sqrt()
    if norm > max_norm:
        for shard in shards:
            shard.mul_(max_norm / norm)
    return norm


class ShardedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard, rows):
        ctx.save_for_backward(x, shard)
        ctx.rows = rows
        return x @ gathered(shard, rows, x.shape[1]).t()

    @staticmethod
    def backward(ctx, upstream):
        x, shard = ctx.saved_tensors
        dx = upstream @ gathered(shard, ctx.rows, x.shape[1])
        dw = (upstream.t() @ x).flatten()
        padding = shard.numel() * dist.get_world_size() - dw.numel()
        dshard = torch.empty_like(shard)
        dist.reduce_scatter_single(dshard, torch.cat([dw, dw.new_zeros(padding)]), dist.ReduceOp.AVG)
        return dx, dshard, None


def gathered(shard, rows, columns):
    flat = shard.new_empty(shard.numel() * dist.get_world_size())
    dist.all_gather_single(flat, shard.detach())
    return flat[: rows * columns].view(rows, columns)


def sharded_linear(x, shard, rows):
    ### BEGIN SOLUTION
    return ShardedLinear.apply(x, shard, rows)


def run(units, x):
    ### BEGIN SOLUTION
    work = units[0].gather()
    for number, unit in enumerate(units):
        work.wait()
        if number + 1 < len(units):
            work = units[number + 1].gather()
        x = unit(x)
        unit.free()
    return x


def start(build):
    ### BEGIN SOLUTION
    with torch.device("meta"):
        model = build()
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for block in model:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device="cpu")
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return model
