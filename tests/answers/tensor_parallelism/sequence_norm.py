"""Exercise 4 of the lab on tensor parallelism: RMSNorm of this rank's tokens, then all tokens for everybody."""

import torch
import torch.distributed as dist
from known_answers import right, wrong


class CopyToRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class GatherSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.transpose(0, 1).contiguous()
        whole = x.new_empty(dist.get_world_size() * x.shape[0], *x.shape[1:])
        dist.all_gather_single(whole, x)
        return whole.transpose(0, 1)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.transpose(0, 1).contiguous()
        part = gradient.new_empty(gradient.shape[0] // dist.get_world_size(), *gradient.shape[1:])
        dist.reduce_scatter_single(part, gradient)
        return part.transpose(0, 1)


def sequence_norm(x, weight, eps):
    shared = CopyToRanks.apply(weight)
    return GatherSequence.apply(torch.nn.functional.rms_norm(x, weight.shape, shared, eps))


RESULT = "    return GatherSequence.apply(torch.nn.functional.rms_norm(x, weight.shape, shared, eps))\n"
SHARED = "    shared = CopyToRanks.apply(weight)\n"
TURN_X = "        x = x.transpose(0, 1).contiguous()\n"
TURN_GRADIENT = "        gradient = gradient.transpose(0, 1).contiguous()\n"
SCATTER = "        dist.reduce_scatter_single(part, gradient)\n"
EQUAL = {
    "10: `x.view_as(x)` → `x`": "what forward returns as it came is made a view by autograd",
    "14: `gradient.clone()` → `gradient`": "the gradient that arrives here is nobody else's",
    "22: `x.transpose(0, 1).contiguous()` → `x.transpose(0, 1)`": "gloo gathers what lies in another order too",
    "29: `gradient.transpose(0, 1).contiguous()` → `gradient.transpose(0, 1)`": "gloo takes what lies in another order too",
    "13: without `gradient = gradient.clone()`": "the gradient that arrives here is nobody else's",
    "9: forward with `torch.set_grad_enabled(not torch.is_grad_enabled())`": "autograd sets the mode itself, before and after",
    "13: backward with `torch.set_grad_enabled(not torch.is_grad_enabled())`": "autograd sets the mode itself, before and after",
    "21: forward with `torch.set_grad_enabled(not torch.is_grad_enabled())`": "autograd sets the mode itself, before and after",
    "28: backward with `torch.set_grad_enabled(not torch.is_grad_enabled())`": "autograd sets the mode itself, before and after",
    "25: arguments of `whole.transpose(0, 1)` swapped": "the same",
    "32: arguments of `part.transpose(0, 1)` swapped": "the same",
    "22: arguments of `x.transpose(0, 1)` swapped": "the same",
    "29: arguments of `gradient.transpose(0, 1)` swapped": "the same",
}


# --- right, and written differently


@right("lists of tensors, and a hook on the weight")
def lists():
    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, x.contiguous())
            return torch.cat(parts, dim=1)

        @staticmethod
        def backward(ctx, gradient):
            parts = [part.contiguous() for part in gradient.chunk(dist.get_world_size(), dim=1)]
            mine = torch.empty_like(parts[0])
            dist.reduce_scatter(mine, parts)
            return mine

    def summed(gradient):
        total = gradient.clone()
        dist.all_reduce(total)
        return total

    def sequence_norm(x, weight, eps):
        weight = weight.view_as(weight)
        weight.register_hook(summed)
        normed = x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight
        return Gather.apply(normed)

    return (sequence_norm,)


@right("one autograd function, with all gradients by hand")
def by_hand():
    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, eps):
            scale = torch.rsqrt(x.pow(2).mean(dim=2, keepdim=True) + eps)
            ctx.save_for_backward(x, weight, scale)
            mine = (x * scale * weight).movedim(1, 0).contiguous()
            whole = mine.new_empty(dist.get_world_size() * mine.shape[0], *mine.shape[1:])
            work = dist.all_gather_single(whole, mine, async_op=True)
            work.wait()
            return whole.movedim(0, 1)

        @staticmethod
        def backward(ctx, upstream):
            x, weight, scale = ctx.saved_tensors
            pieces = upstream.movedim(1, 0).contiguous()
            mine = pieces.new_empty(x.shape[1], x.shape[0], x.shape[2])
            dist.reduce_scatter_single(mine, pieces)
            mine = mine.movedim(0, 1)
            dweight = (mine * x * scale).sum((0, 1))
            dist.all_reduce(dweight)
            inner = mine * weight
            dx = scale * inner - x * scale**3 * (inner * x).mean(dim=2, keepdim=True)
            return dx, dweight, None

    return (lambda x, weight, eps: Norm.apply(x, weight, eps),)


@right("the norm is computed again in the backward pass")
def recomputed():
    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, eps):
            ctx.save_for_backward(x, weight)
            ctx.eps = eps
            mine = torch.nn.functional.rms_norm(x, (x.shape[2],), weight, eps)
            parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, mine)
            return torch.cat(parts, 1)

        @staticmethod
        def backward(ctx, upstream):
            x, weight = (one.detach().requires_grad_() for one in ctx.saved_tensors)
            pieces = torch.stack(upstream.chunk(dist.get_world_size(), 1))
            mine = torch.empty_like(x)
            dist.reduce_scatter_single(mine, pieces.flatten(0, 1))
            with torch.enable_grad():
                y = torch.nn.functional.rms_norm(x, (x.shape[2],), weight, ctx.eps)
                dx, dweight = torch.autograd.grad(y, (x, weight), mine)
            dist.all_reduce(dweight)
            return dx, dweight, None

    return (lambda x, weight, eps: Norm.apply(x, weight, eps),)


# --- wrong

wrong("nothing comes back", "the result is missing", {RESULT: RESULT.replace("return ", "")})
wrong("the weight's gradient is not summed", "is that of this rank's tokens", {SHARED: "    shared = weight\n"})
wrong("the weight's gradient is a mean", "each token counts once", {
    "dist.all_reduce(gradient)": "dist.all_reduce(gradient, dist.ReduceOp.AVG)"
})  # fmt: skip
wrong("the gradient is cut, not scattered", "calls no reduce_scatter at all", {
    SCATTER: "        part = gradient.chunk(dist.get_world_size())[dist.get_rank()].clone()\n"
})  # fmt: skip
wrong("the mean of gradients", "the gradient of the weight is the mean", {
    SCATTER: "        dist.reduce_scatter_single(part, gradient, dist.ReduceOp.AVG)\n"
})  # fmt: skip
wrong("an all-reduce in place of the reduce-scatter", "of the gradients only the weight's", {
    SCATTER: "        dist.all_reduce(gradient)\n"
    "        part = gradient.chunk(dist.get_world_size())[dist.get_rank()].clone()\n"
})  # fmt: skip
wrong("dimension 0 is gathered", "another shape", {
    TURN_X: "        x = x.contiguous()\n", "        return whole.transpose(0, 1)\n": "        return whole\n"
})  # fmt: skip
wrong("seen as the right shape", "the result", {
    TURN_X: "        x = x.contiguous()\n",
    "        return whole.transpose(0, 1)\n": "        return whole.view(x.shape[0], -1, x.shape[2])\n",
})  # fmt: skip
wrong("gradients are not turned", "the gradient of x does not have the right numbers", {
    TURN_GRADIENT: "        gradient = gradient.contiguous()\n        shape = gradient.shape\n"
    "        gradient = gradient.view(shape[1], shape[0], shape[2])\n"
})  # fmt: skip
wrong(
    "nothing comes back of the gradients", "the gradient of x is missing", {"        return part.transpose(0, 1)\n": ""}
)
wrong("gathered first, then the norm", "norm first, then gather", {
    RESULT: "    return torch.nn.functional.rms_norm(GatherSequence.apply(x), weight.shape, shared, eps)\n"
})  # fmt: skip
wrong("everything is kept", "norm first, then gather", {
    "        return whole.transpose(0, 1)\n": "        ctx.kept = [whole.clone() for _ in range(3)]\n        return whole.transpose(0, 1)\n"
})  # fmt: skip
wrong("eps is forgotten", "does not have the right numbers", {", shared, eps)": ", shared)"})
wrong("a LayerNorm", "does not have the right numbers", {"rms_norm(x, weight.shape, shared, eps)":
    "layer_norm(x, weight.shape, shared, None, eps)"})  # fmt: skip
wrong("the weight is left out", "does not have the right numbers", {
    RESULT: RESULT.replace("shared, eps)", "None, eps) + 0 * shared")
})  # fmt: skip
wrong(
    "the way back is cut", "has lost its way back", {RESULT: RESULT.replace("shared, eps))", "shared, eps).detach())")}
)
wrong(
    "f around x as well",
    "of the gradients only the weight's",
    {RESULT: RESULT.replace("rms_norm(x", "rms_norm(CopyToRanks.apply(x)")},
)
wrong(
    "gathering is not waited for",
    "never waits for",
    {"all_gather_single(whole, x)": "all_gather_single(whole, x, async_op=True)"},
)
wrong("scattering is not waited for", "never waits for", {
    "reduce_scatter_single(part, gradient)": "reduce_scatter_single(part, gradient, async_op=True)"
})  # fmt: skip
wrong("nothing is gathered", "sequence_norm calls no all_gather at all", {
    "        dist.all_gather_single(whole, x)\n": ""
})  # fmt: skip
wrong("gathered twice", "sends more than it has to with all_gather", {
    "        dist.all_gather_single(whole, x)\n": "        dist.all_gather_single(whole, x)\n" * 2
})  # fmt: skip
wrong("x is changed", "has other numbers than before", {SHARED: "    x.data.mul_(1.01)\n" + SHARED})
wrong("torch's own", "which does the exercise", {
    RESULT: "    from torch.distributed.nn.functional import all_gather\n"
    "    return torch.cat(all_gather(torch.nn.functional.rms_norm(x, weight.shape, shared, eps)), 1)\n"
})  # fmt: skip
wrong("in float32", "is all of it computed in float64", {
    RESULT: RESULT.replace("rms_norm(x, weight.shape, shared, eps)", "rms_norm(x.float(), weight.shape, shared.float(), eps).to(x.dtype)")
})  # fmt: skip


# --- wrong: what is kept from call to call

wrong("a shape is kept for all, between forward and backward", "returned an invalid gradient", {
    TURN_X: "        GatherSequence.shape = x.shape\n" + TURN_X,
    "        return part.transpose(0, 1)\n": "        return part.transpose(0, 1).reshape(GatherSequence.shape)\n",
})  # fmt: skip
wrong("a copy of the weight grows old", "in the second round, on the same tensors with other numbers", {
    SHARED: SHARED + "    known = sequence_norm.__dict__.setdefault('known', {})\n"
    "    shared = shared + (known.setdefault(weight.shape, weight.detach().clone()) - shared).detach()\n"
})  # fmt: skip
wrong("copies of numpy's are kept", "until the backward pass more is held", {
    RESULT: "    sequence_norm.kept = x.detach().numpy().repeat(5)\n" + RESULT
})  # fmt: skip
wrong("results share a buffer", "each call needs memory of its own", {
    "        whole = x.new_empty(": "        whole = sequence_norm.__dict__.setdefault((x.shape, x.dtype), x.new_empty("
    , "*x.shape[1:])\n        dist.all_gather": "*x.shape[1:]))\n        dist.all_gather"
})  # fmt: skip
wrong("a DTensor", "DTensor and _functional_collectives do that, and are refused", {
    RESULT: "    from torch.distributed.device_mesh import init_device_mesh\n"
    "    from torch.distributed.tensor import DTensor, Replicate, Shard\n"
    "    mesh = init_device_mesh('cpu', (dist.get_world_size(),))\n"
    "    mine = torch.nn.functional.rms_norm(x, weight.shape, shared, eps)\n"
    "    return DTensor.from_local(mine, mesh, [Shard(1)]).redistribute(mesh, [Replicate()]).to_local()\n"
})  # fmt: skip
wrong("all tokens are gathered, and their norm is computed again", "norm first, then gather", {
    RESULT: "    from torch.utils.checkpoint import checkpoint\n"
    "    norm, whole = torch.nn.functional.rms_norm, GatherSequence.apply(x)\n"
    "    return checkpoint(norm, whole, weight.shape, shared, eps, use_reentrant=False)\n"
})  # fmt: skip
