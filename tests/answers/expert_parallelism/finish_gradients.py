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


SUM = "            dist.all_reduce(one.grad, group=group)"
DIVIDE = "            one.grad /= dist.get_world_size()"
SQUARES = '    dist.all_reduce(squares, group=mesh.get_group("experts"))'
ZEROS = "            if one.grad is None:\n                one.grad = torch.zeros_like(one)\n"

right("divided by both sizes, the norm as a list of one in a tensor", {
    DIVIDE: "            one.grad /= mesh.size(0) * mesh.size(1)", "    return norm": "    return norm[None]",
})  # fmt: skip
wrong("the norm before the average", "the norm of all gradients", {
    "    for parameters, group in": "    before = sum(one.grad.square().sum() for one in dense)\n    for parameters, group in",
    "sum(one.grad.square().sum() for one in dense))": "before)",
})  # fmt: skip
wrong("experts are sent twice", "more is handed in", {
    SUM: "            if group is None:\n                dist.all_reduce(one.grad)\n            else:\n"
    "                found = [torch.empty_like(one) for _ in range(dist.get_world_size())]\n"
    "                dist.all_gather(found, one.grad)\n                dist.all_reduce(one.grad, group=group)",
})  # fmt: skip
wrong("nobody waits", "never waits", {SUM: "            dist.all_reduce(one.grad, group=group, async_op=True)"})
wrong("torch's clipping on each rank alone", "the norm", {
    SQUARES: "", "    for one in (*dense, *experts):\n        one.grad *= min(1, limit / norm)\n    return norm":
        "    return torch.nn.utils.clip_grad_norm_([*dense, *experts], limit)",
})  # fmt: skip
wrong("a gradient that is None is left out, on its rank alone", "wait", {
    ZEROS: "            if one.grad is None:\n                continue\n", "in experts)": "in experts if one.grad is not None)",
    "in (*dense, *experts):": "in (one for one in (*dense, *experts) if one.grad is not None):",
})  # fmt: skip
