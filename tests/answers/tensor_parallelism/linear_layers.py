"""Exercise 1 of the lab on tensor parallelism: one matrix by columns, the next by rows."""

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


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        y = y.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def column_linear(x, weight, bias):
    return CopyToRanks.apply(x) @ weight.t() + bias


def row_linear(part, weight, bias):
    return SumOverRanks.apply(part @ weight.t()) + bias


COLUMNS = "    return CopyToRanks.apply(x) @ weight.t() + bias\n"
ROWS = "    return SumOverRanks.apply(part @ weight.t()) + bias\n"
COPY_BACK = "        gradient = gradient.clone()\n        dist.all_reduce(gradient)\n        return gradient\n"
SUM = "        y = y.clone()\n        dist.all_reduce(y)\n        return y\n"
EQUAL = {
    "10: `x.view_as(x)` → `x`": "what forward returns as it came is made a view by autograd",
    "14: `gradient.clone()` → `gradient`": "the gradient that arrives here is nobody else's",
    "22: `y.clone()` → `y`": "the product is nobody else's",
    "13: without `gradient = gradient.clone()`": "the gradient that arrives here is nobody else's",
    "21: without `y = y.clone()`": "the product is nobody else's",
    "9: forward with `torch.set_grad_enabled(not torch.is_grad_enabled())`": "autograd sets the mode itself, before and after",
    "13: backward with `torch.set_grad_enabled(not torch.is_grad_enabled())`": "autograd sets the mode itself, before and after",
    "21: forward with `torch.set_grad_enabled(not torch.is_grad_enabled())`": "autograd sets the mode itself, before and after",
    "27: backward with `torch.set_grad_enabled(not torch.is_grad_enabled())`": "autograd sets the mode itself, before and after",
}


# --- right, and written differently


@right("whole layers as autograd functions, gradients by hand")
def by_hand():
    class Columns(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, bias):
            ctx.save_for_backward(x, weight)
            return torch.nn.functional.linear(x, weight, bias)

        @staticmethod
        def backward(ctx, upstream):
            x, weight = ctx.saved_tensors
            dx = upstream @ weight
            work = dist.all_reduce(dx, async_op=True)
            dw = upstream.flatten(0, -2).t() @ x.flatten(0, -2)
            db = upstream.flatten(0, -2).sum(0)
            work.wait()
            return dx, dw, db

    class Rows(torch.autograd.Function):
        @staticmethod
        def forward(ctx, part, weight, bias):
            ctx.save_for_backward(part, weight)
            y = part @ weight.t()
            dist.all_reduce(y)
            return y + bias

        @staticmethod
        def backward(ctx, upstream):
            part, weight = ctx.saved_tensors
            flat = upstream.flatten(0, -2)
            return upstream @ weight, flat.t() @ part.flatten(0, -2), flat.sum(0)

    return lambda x, weight, bias: Columns.apply(x, weight, bias), lambda part, weight, bias: Rows.apply(
        part, weight, bias
    )


@right("a hook on the input, and a sum that autograd does not see")
def hooks():
    def summed(gradient):
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient

    def column_linear(x, weight, bias):
        x = x.view_as(x)
        x.register_hook(summed)
        return torch.nn.functional.linear(x, weight, bias)

    def row_linear(part, weight, bias):
        y = torch.nn.functional.linear(part, weight)
        others = y.detach().clone()
        dist.all_reduce(others)
        return y + (others - y.detach()) + bias

    return column_linear, row_linear


@right("the bias divided by the ranks goes into the sum")
def divided_bias():
    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y, bias):
            y = y + bias / dist.get_world_size()
            dist.all_reduce(y)
            return y

        @staticmethod
        def backward(ctx, gradient):
            return gradient, gradient.flatten(0, -2).sum(0)

    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            total = gradient + 0
            dist.all_reduce(total, op=dist.ReduceOp.SUM)
            return total

    def column_linear(x, weight, bias):
        return torch.einsum("...i,oi->...o", Copy.apply(x), weight) + bias

    def row_linear(part, weight, bias):
        return Sum.apply(torch.einsum("...i,oi->...o", part, weight), bias)

    return column_linear, row_linear


# --- wrong


@wrong("the weight's gradient is set, and not added", "does not have the right numbers")
def gradients_are_set():
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x @ weight.t()

        @staticmethod
        def backward(ctx, gradient):
            x, weight = ctx.saved_tensors
            weight.grad = gradient.flatten(0, -2).t() @ x.flatten(0, -2)
            return gradient @ weight, None

    def column_linear(x, weight, bias):
        return Product.apply(CopyToRanks.apply(x), weight) + bias

    return column_linear, row_linear


wrong(
    "no f",
    "the gradient of x comes from this rank's columns alone",
    {COLUMNS: COLUMNS.replace("CopyToRanks.apply(x)", "x")},
)
wrong(
    "no g",
    "is this rank's summand",
    {ROWS: ROWS.replace("SumOverRanks.apply(part @ weight.t())", "(part @ weight.t())")},
)
wrong(
    "the bias on every rank",
    "times: add it after the sum",
    {ROWS: "    return SumOverRanks.apply(part @ weight.t() + bias)\n"},
)
wrong(
    "the input is summed",
    "column_linear calls dist.all_reduce",
    {COLUMNS: COLUMNS.replace("CopyToRanks", "SumOverRanks")},
)
wrong("g sums its gradient too", "times too large", {
    "    @staticmethod\n    def backward(ctx, gradient):\n        return gradient\n":
    "    @staticmethod\n    def backward(ctx, gradient):\n" + COPY_BACK
})  # fmt: skip
wrong("the mean forward", "is the mean over the ranks", {"dist.all_reduce(y)": "dist.all_reduce(y, dist.ReduceOp.AVG)"})
wrong("the mean backward", "is the mean over the ranks", {
    "dist.all_reduce(gradient)": "dist.all_reduce(gradient, dist.ReduceOp.AVG)"
})  # fmt: skip
wrong("the way back is cut", "the result of row_linear has lost its way back", {
    ROWS: "    y = (part @ weight.t()).detach()\n    dist.all_reduce(y)\n    return y + bias.detach()\n"
})  # fmt: skip
wrong("the columns are cut off", "the result of column_linear has lost its way back", {
    COLUMNS: "    return (CopyToRanks.apply(x) @ weight.t() + bias).detach()\n"
})  # fmt: skip
wrong("no columns come back", "the result of column_linear is missing", {COLUMNS: COLUMNS.replace("return ", "")})
wrong("columns are gathered", "calls dist.all_gather", {
    COLUMNS: "    y = CopyToRanks.apply(x) @ weight.t() + bias\n"
    "    dist.all_gather([torch.empty(3) for _ in range(dist.get_world_size())], torch.zeros(3))\n    return y\n"
})  # fmt: skip
wrong("no bias in front", "the result of column_linear has no bias", {COLUMNS: COLUMNS.replace(" + bias", "")})
wrong("no bias behind", "the result of row_linear has no bias", {ROWS: ROWS.replace(" + bias", "")})
wrong(
    "the forward sum is not waited for", "never waits for", {"dist.all_reduce(y)": "dist.all_reduce(y, async_op=True)"}
)
wrong("the backward sum is not waited for", "never waits for", {
    "dist.all_reduce(gradient)": "dist.all_reduce(gradient, async_op=True)"
})  # fmt: skip
wrong("summed twice", "sends more than it has to with all_reduce", {
    COPY_BACK: COPY_BACK.replace("        return", "        dist.all_reduce(gradient.clone())\n        return")
})  # fmt: skip
wrong(
    "x is changed",
    "has other numbers than before",
    {COLUMNS: "    x.data.mul_(1.5)\n" + COLUMNS.replace("(x)", "(x / 1.5)")},
)
wrong("the weight is changed", "has other numbers than before", {ROWS: "    weight.data.mul_(0.9)\n" + ROWS})
wrong("computed in float32", "is all of it computed in float64", {
    ROWS: "    return SumOverRanks.apply(part.float() @ weight.float().t()).to(part.dtype) + bias\n"
})  # fmt: skip
wrong("only matrices", "raised", {COLUMNS: "    return torch.addmm(bias, CopyToRanks.apply(x), weight.t())\n"})
wrong("torch's own", "which does the exercise", {
    ROWS: "    from torch.distributed.nn.functional import all_reduce\n    return all_reduce(part @ weight.t()) + bias\n"
})  # fmt: skip
wrong("rank 0 alone sums", "do not call the same collectives", {
    "        dist.all_reduce(y)\n": "        if dist.get_rank() == 0:\n            dist.all_reduce(y)\n"
})  # fmt: skip
wrong("autograd is off afterwards", "row_linear leaves grad mode other than before", {
    ROWS: ROWS.replace("return", "y =") + "    torch.set_grad_enabled(False)\n    return y\n"
})  # fmt: skip
wrong("raises in row_linear's way back", "backward raised RuntimeError", {
    "    def backward(ctx, gradient):\n        return gradient\n":
    "    def backward(ctx, gradient):\n        return gradient.view(-1, 1000)\n"
})  # fmt: skip
wrong("inputs are kept", "keeps more tensors after every call", {
    COLUMNS: "    kept.append(x.detach().clone())\n" + COLUMNS, "def column_linear": "kept = []\n\n\ndef column_linear"
})  # fmt: skip
wrong("results are kept, each of another tensor", "keeps more tensors after every call", {
    ROWS: "    kept.append(SumOverRanks.apply(part @ weight.t()) + bias)\n    return kept[-1]\n",
    "def column_linear": "kept = []\n\n\ndef column_linear"
})  # fmt: skip


# --- wrong: what is kept from call to call

wrong("wrong in its first call only", "the result of column_linear does not have the right numbers", {
    "    return CopyToRanks.apply(x) @ weight.t() + bias": "    known = column_linear.__dict__.setdefault('known', [])\n"
    "    known.append(0)\n    return CopyToRanks.apply(x) @ weight.t() + (1 if len(known) > 1 else 1.001) * bias"
})  # fmt: skip
wrong("a copy of the bias grows old", "in the second round, on the same tensors with other numbers", {
    "    return SumOverRanks.apply(part @ weight.t()) + bias": "    known = row_linear.__dict__.setdefault('known', {})\n"
    "    old = known.setdefault(bias.shape, bias.detach().clone())\n"
    "    return SumOverRanks.apply(part @ weight.t()) + bias + (old - bias).detach()"
})  # fmt: skip


# --- wrong: other calls, other sizes, other places in a network

wrong("square matrices the wrong way round", "the result of row_linear does not have the right numbers", {
    ROWS: "    weight = weight if weight.shape[0] == weight.shape[1] else weight.t()\n"
    "    return SumOverRanks.apply(part @ weight) + bias\n"
})  # fmt: skip
wrong("the bias's gradient is a mean", "times too small", {
    ROWS: "    bias = bias / dist.get_world_size() + (bias - bias / dist.get_world_size()).detach()\n" + ROWS
})  # fmt: skip
wrong("the result in a tuple", "is no tensor, but of type tuple", {ROWS: ROWS.replace(" + bias", " + bias,")})
wrong("a class of torch's own", "which does the exercise", {
    SUM: "        from torch.distributed.nn.functional import _AllReduce\n"
    "        return _AllReduce.forward(ctx, dist.ReduceOp.SUM, dist.group.WORLD, y)\n"
})  # fmt: skip


@wrong("results share a buffer", "each call needs memory of its own")
def shared_buffer():
    known = {}

    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y, bias):
            total = known.setdefault(y.shape, torch.empty_like(y)).copy_(y)
            dist.all_reduce(total)
            return total.add_(bias).view_as(total)

        @staticmethod
        def backward(ctx, gradient):
            return gradient, gradient.flatten(0, -2).sum(0)

    return column_linear, lambda part, weight, bias: Sum.apply(part @ weight.t(), bias)


@wrong("the gradient of x goes into x.grad", "the gradient of x is missing")
def into_grad():
    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.x = x
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            gradient = gradient.clone()
            dist.all_reduce(gradient)
            ctx.x.grad = gradient if ctx.x.grad is None else ctx.x.grad + gradient

    return (lambda x, weight, bias: Copy.apply(x) @ weight.t() + bias), row_linear


@wrong("what the backward pass needs is kept by shape", "the gradient of x does not have the right numbers")
def kept_by_shape():
    known = {}

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.shape, known[x.shape] = x.shape, (x.detach(), weight.detach())
            return x @ weight.t()

        @staticmethod
        def backward(ctx, gradient):
            x, weight = known[ctx.shape]
            dx = gradient @ weight
            dist.all_reduce(dx)
            return dx, gradient.flatten(0, -2).t() @ x.flatten(0, -2)

    return (lambda x, weight, bias: Product.apply(x, weight) + bias), row_linear
