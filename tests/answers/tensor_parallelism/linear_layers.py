"""Exercise 1 of the lab on tensor parallelism: by columns, then by rows. What is not here is in the official solution."""

import torch
import torch.distributed as dist
from known_answers import right, wrong

COLUMNS = "    return CopyToRanks.apply(x) @ weight.t() + bias"
ROWS = "    return SumOverRanks.apply(part @ weight.t()) + bias"


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
            work.wait()
            return dx, dw, upstream.flatten(0, -2).sum(0)

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

    return lambda *given: Columns.apply(*given), lambda *given: Rows.apply(*given)


right("a hook on the input, and a sum that autograd does not see", {
    COLUMNS: "    x = x.view_as(x)\n    x.register_hook(lambda gradient: CopyToRanks.backward(None, gradient))\n"
    "    return torch.nn.functional.linear(x, weight, bias)",
    ROWS: "    y = torch.nn.functional.linear(part, weight)\n    others = y.detach().clone()\n"
    "    dist.all_reduce(others)\n    return y + (others - y.detach()) + bias",
})  # fmt: skip
right("the bias divided by the ranks goes into the sum", {
    "def forward(ctx, y):\n        y = y.clone()": "def forward(ctx, y, bias):\n        y = y + bias / dist.get_world_size()",
    "ctx, gradient):\n        return gradient": "ctx, gradient):\n        return gradient, gradient.flatten(0, -2).sum(0)",
    COLUMNS: '    return torch.einsum("...i,oi->...o", CopyToRanks.apply(x), weight) + bias',
    ROWS: '    return SumOverRanks.apply(torch.einsum("...i,oi->...o", part, weight), bias)',
})  # fmt: skip

wrong("the way back is cut", "the result of row_linear has lost its way back", {
    ROWS: "    y = (part @ weight.t()).detach()\n    dist.all_reduce(y)\n    return y + bias.detach()"
})  # fmt: skip
wrong("columns are gathered", "what is handed in forward", {
    COLUMNS: COLUMNS.replace("return", "y =")
    + "\n    dist.all_gather([torch.empty(3) for _ in range(dist.get_world_size())], torch.zeros(3))\n    return y"
})  # fmt: skip
wrong("summed twice", "what is handed in backward", {
    "dist.all_reduce(gradient)": "dist.all_reduce(gradient)\n        dist.all_reduce(gradient.clone())"
})  # fmt: skip
wrong("not waited for", "never waits for", {"dist.all_reduce(y)": "dist.all_reduce(y, async_op=True)"})
wrong("what the backward pass needs is kept in the class", "the backward pass raised RuntimeError", {
    COLUMNS: "    return Product.apply(CopyToRanks.apply(x), weight) + bias",
    "def column_linear": "class Product(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x, weight):\n"
    "        Product.kept = x, weight\n        return x @ weight.t()\n\n    @staticmethod\n    def backward(ctx, gradient):\n"
    "        x, weight = Product.kept\n        return gradient @ weight, torch.einsum('...o,...i->oi', gradient, x)\n\n\n"
    "def column_linear",
})  # fmt: skip
