"""Exercise 3 of the lab on expert parallelism: gradients of two kinds. What is not here is in the official solution."""

import torch
import torch.distributed as dist
from known_answers import right, wrong


@right("two flat buffers, begun together")
def flat_buffers():
    def finish_gradients(dense, experts, mesh, limit):
        total = mesh.size()
        works, flats = [], []
        for many, group in ((dense, dist.group.WORLD), (experts, mesh["copies"].get_group())):
            flat = torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in many]) / total
            works.append(dist.all_reduce(flat, group=group, async_op=True))
            flats.append(flat)
        for work in works:
            work.wait()
        norms = torch.stack([flats[1].norm() ** 2])
        dist.all_reduce(norms, group=mesh["experts"].get_group())
        norm = float((norms[0] + flats[0].norm() ** 2) ** 0.5)
        factor = limit / norm if norm > limit else 1.0
        for many, flat in zip((dense, experts), flats, strict=True):
            for p, part in zip(many, flat.split([p.numel() for p in many]), strict=True):
                p.grad = part.view_as(p) * factor
        return norm

    return (finish_gradients,)


@right("averages, and then what is missing")
def averages_first():
    def finish_gradients(dense, experts, mesh, limit):
        copies, others = mesh.get_group("copies"), mesh.get_group(1)
        for p in dense:
            dist.all_reduce(p.grad)
            p.grad.div_(dist.get_world_size())
        for p in experts:
            g = torch.zeros_like(p) if p.grad is None else p.grad.clone()
            all_of_it = [torch.empty_like(g) for _ in range(copies.size())]
            dist.all_gather(all_of_it, g, group=copies)
            p.grad = sum(all_of_it) / copies.size() / dist.get_world_size(others)
        mine = sum(float(p.grad.pow(2).sum()) for p in experts)
        said = [None] * others.size()
        dist.all_gather_object(said, mine, group=others)
        norm = (sum(said) + sum(float(p.grad.pow(2).sum()) for p in dense)) ** 0.5
        if norm > limit:
            for p in dense + experts:
                p.grad = p.grad * (limit / norm)
        return norm

    return (finish_gradients,)


@right("functional collectives, and torch's own scaling")
def functional():
    import torch.distributed._functional_collectives as functional

    def finish_gradients(dense, experts, mesh, limit):
        for p in dense:
            p.grad = functional.all_reduce(p.grad, "avg" if False else "sum", dist.group.WORLD) / mesh.size()
        for p in experts:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            p.grad = functional.all_reduce(p.grad, "sum", (mesh, 0)) / mesh.size()
        total = torch.nn.utils.get_total_norm([p.grad for p in experts]) ** 2
        total = functional.all_reduce(total, "sum", (mesh, 1))
        total = (total + torch.nn.utils.get_total_norm([p.grad for p in dense]) ** 2).sqrt()
        torch.nn.utils.clip_grads_with_norm_(dense + experts, limit, total)
        return total

    return (finish_gradients,)


@right("all of it as one coalesced call for each group, the squares over all ranks divided by the copies")
def coalesced():
    def finish_gradients(dense, experts, mesh, limit):
        n, r = dist.get_world_size(), mesh.size(0)
        for p in experts:
            if p.grad is None:
                p.grad = torch.zeros(p.shape, dtype=p.dtype)
        dist.all_reduce_coalesced([p.grad for p in dense])
        dist.all_reduce_coalesced([p.grad for p in experts], group=mesh.get_group("copies"))
        torch._foreach_div_([p.grad for p in dense + experts], n)
        squares = sum((p.grad**2).sum() for p in experts) / r + sum((p.grad**2).sum() for p in dense) / n
        dist.all_reduce(squares)
        norm = squares**0.5
        torch._foreach_mul_([p.grad for p in dense + experts], min(1.0, limit / float(norm)))
        return norm.item()

    return (finish_gradients,)


SUM = "            dist.all_reduce(one.grad, group=group)"
DIVIDE = "            one.grad /= dist.get_world_size()"
SQUARES = '    dist.all_reduce(squares, group=mesh.get_group("experts"))'
ZEROS = "            if one.grad is None:\n                one.grad = torch.zeros_like(one)\n"

right("divided by both sizes, the norm as a list of one in a tensor", {
    DIVIDE: "            one.grad /= mesh.size(0) * mesh.size(1)", "    return norm": "    return norm[None]",
})  # fmt: skip
wrong("the norm of each kind added up", "the norm of all gradients", {
    "    norm = (squares + sum(one.grad.square().sum() for one in dense)).sqrt()":
        "    norm = squares.sqrt() + sum(one.grad.square().sum() for one in dense).sqrt()",
})  # fmt: skip
wrong(
    "only the largest is looked at",
    "the norm of all gradients",
    {SQUARES: SQUARES.replace("squares, ", "squares, dist.ReduceOp.MAX, ")},
)
wrong("the norm before the average", "the norm of all gradients", {
    "    for parameters, group in": "    before = sum(one.grad.square().sum() for one in dense)\n    for parameters, group in",
    "sum(one.grad.square().sum() for one in dense))": "before)",
})  # fmt: skip
wrong("the norm after scaling", "the norm of all gradients", {"    return norm": "    return norm.clamp(max=limit)"})
wrong("experts are sent twice", "more is handed in", {
    SUM: "            if group is None:\n                dist.all_reduce(one.grad)\n            else:\n"
    "                found = [torch.empty_like(one) for _ in range(dist.get_world_size())]\n"
    "                dist.all_gather(found, one.grad)\n                dist.all_reduce(one.grad, group=group)",
})  # fmt: skip
wrong("a dense gradient in two hops", "more is handed in", {
    SUM: "            dist.all_reduce(one.grad, group=mesh.get_group('copies'))\n            if group is None:\n"
    "                dist.all_reduce(one.grad, group=mesh.get_group('experts'))",
})  # fmt: skip
wrong("nobody waits", "never waits", {SUM: "            dist.all_reduce(one.grad, group=group, async_op=True)"})
wrong(
    "the weights are scaled",
    "changes",
    {"        one.grad *= min(1, limit / norm)": "        one.data *= min(1, limit / norm)"},
)
wrong("no norm", "not returned as one number", {"    return norm": "    return None"})
wrong("torch's clipping on each rank alone", "the norm", {
    SQUARES: "", "    for one in (*dense, *experts):\n        one.grad *= min(1, limit / norm)\n    return norm":
        "    return torch.nn.utils.clip_grad_norm_([*dense, *experts], limit)",
})  # fmt: skip
wrong("averaged over a row of experts", "not what the exercise says", {
    "((dense, None)": "((dense, mesh.get_group('experts'))",
    DIVIDE: "            one.grad /= dist.get_world_size(group)",
})  # fmt: skip
wrong(
    "a gradient that is None is left out",
    "raised AttributeError",
    {ZEROS: "            if one.grad is None:\n                continue\n"},
)
wrong("a gradient that is None is left out, on its rank alone", "wait", {
    ZEROS: "            if one.grad is None:\n                continue\n", "in experts)": "in experts if one.grad is not None)",
    "in (*dense, *experts):": "in (one for one in (*dense, *experts) if one.grad is not None):",
})  # fmt: skip
