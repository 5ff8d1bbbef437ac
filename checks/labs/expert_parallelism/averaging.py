"""Check of ``finish_gradients``: gradients of one process, each handed in once, and the norm of the whole model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from checks.engine import Reference, exercise, leaves, refuse, watched
from checks.engine.plain import from_array, number

SUM = "            dist.all_reduce(one.grad, group=group)"
SQUARES = '    dist.all_reduce(squares, group=mesh.get_group("experts"))'
OFFICIAL = Reference("expert_parallelism", "finish_gradients", {
    "an expert's gradient is divided by the number of its copies: it has met tokens of all ranks, so divide by all":
        {"one.grad /= dist.get_world_size()": "one.grad /= dist.get_world_size(group)"},
    "gradients are added up over the ranks: the loss is the mean": {"one.grad /= dist.get_world_size()": "pass"},
    "experts' gradients are added up over all ranks, and some ranks have other experts":
        {'(experts, mesh.get_group("copies"))': "(experts, None)"},
    "experts' gradients are added up over the ranks that have other experts":
        {'(experts, mesh.get_group("copies"))': '(experts, mesh.get_group("experts"))'},
    "experts' gradients are not added up over their copies: the copies drift apart":
        {SUM: f"            if group is None:\n    {SUM}"},
    "dense gradients are averaged over the copies only":
        {"((dense, None)": '((dense, mesh.get_group("copies"))',
         "one.grad /= dist.get_world_size()": "one.grad /= dist.get_world_size(group)"},
    "the norm has this rank's experts alone: ranks scale by different factors, and dense copies drift apart":
        {SQUARES: "    pass"},
    "the norm counts experts once for each copy": {SQUARES: "    dist.all_reduce(squares)"},
    "the norm counts dense parameters once for each rank that has other experts":
        {"for one in experts)": "for one in (*dense, *experts))",
         " + sum(one.grad.square().sum() for one in dense)": ""},
    "the norm's square is returned": {").sqrt()": ")"},
    "gradients are scaled up where the norm is below `limit`": {"min(1, limit / norm)": "limit / norm"},
    "only dense gradients are scaled": {"for one in (*dense, *experts):": "for one in dense:"},
    "gradients are not scaled": {"one.grad *= min(1, limit / norm)": "pass"},
})  # fmt: skip
CASES = [{"copies": 2, "limit": 1000, "seed": 1}, {"copies": 2, "limit": 0.5, "seed": 2},
         {"copies": 1, "limit": 0.5, "seed": 3}, {"copies": 4, "limit": 1000, "seed": 4}]  # fmt: skip
SLACK = 1024  # bytes beside the gradients
_meshes: dict[int, DeviceMesh] = {}


@exercise(OFFICIAL, CASES, title="Gradients of two kinds", difficulty=2, minutes=20, ranks=(4, 2))
def finish_gradients(case: dict[str, Any], finish: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``finish_gradients(dense, experts, mesh, limit)``."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    copies = min(case["copies"], ranks)
    if copies not in _meshes:
        names = "copies", "experts"
        _meshes[copies] = init_device_mesh("cpu", (copies, ranks // copies), mesh_dim_names=names)
    torch.manual_seed(case["seed"])
    dense = [torch.randn(shape) for shape in ((30, 24), (24,), (3, 20, 7))]
    torch.manual_seed(100 * case["seed"] + rank % (ranks // copies))  # the same in all copies
    experts = [torch.randn(shape) for shape in ((32, 24), (24, 16), (32, 24), (24, 16))]
    torch.manual_seed(100 * case["seed"] + 50 + rank)
    dense, experts = ([one.requires_grad_() for one in many] for many in (dense, experts))
    for one in (*dense, *experts):
        one.grad = torch.randn_like(one)
    if (rank + case["seed"]) % 3:  # this expert got no token of the ranks that it meets here
        experts[2].grad = experts[3].grad = None
    mine = sum(one.nbytes for one in (*dense, *experts))
    with leaves(dense=[one.detach() for one in dense], experts=[one.detach() for one in experts]), watched() as seen:
        norm = finish(list(dense), list(experts), _meshes[copies], case["limit"])
    fault = f"more is handed in than each of this rank's gradients once, and {SLACK} bytes"
    refuse(seen.sent() > mine + SLACK, fault, measured=f"{seen.sent()} bytes", expected=f"at most {mine + SLACK} bytes")
    norm = number(norm.item() if isinstance(norm, torch.Tensor) and norm.numel() == 1 else from_array(norm))
    refuse(norm is None, "the norm is not returned as one number")
    result: dict[str, Any] = {}
    for kind, many in (("dense", dense), ("expert", experts)):
        for place, one in enumerate(many):
            gradient = torch.zeros_like(one) if one.grad is None else one.grad
            result[f"the gradient of {kind} parameter {place}"] = gradient
    return result | {"the norm of all gradients before they are scaled": torch.tensor(float(norm or 0))}
