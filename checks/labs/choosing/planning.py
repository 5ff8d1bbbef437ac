"""Check of ``on_infiniband`` and ``on_ethernet``: a plan has to fit, and to run within 5 % of the best."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from checks.engine import Reference, exercise, refuse
from checks.engine.answers import Answer
from checks.engine.plain import from_array, kind_of, number
from checks.engine.processes import run
from checks.labs.choosing.simulated import BATCH, GPUS, ROOM, fastest, time_and_memory
from lessons.training.layouts import Plan
from utils.training.models import LLAMA_70B, llama_parameter_count

ON_INFINIBAND = Reference("choosing", "on_infiniband")
ON_ETHERNET = Reference("choosing", "on_ethernet")
STAGES, SLOWER = 8, 1.05
STATES = 16 * llama_parameter_count(LLAMA_70B) / 2**30  # GiB of parameters, gradients, Adam's state
GBPS = {"InfiniBand": 400, "Ethernet": 12.5}  # into a node, GB a second


def _judge(answer: Answer, network: str) -> dict[str, Any]:
    """Run the plan that an answer returns, or look up what it took when it was run before."""
    plan = _checked(run(_told, answer, timeout=600))
    seconds, gib = time_and_memory(plan, network)
    best, _ = fastest(network)
    figures = {"simulated": f"{seconds:.2f} s a step", "memory": f"{gib:.1f} GiB", "best known": f"{best:.2f} s"}
    refuse(gib > ROOM, _fills(plan), measured=f"{gib:.0f} GiB of the fullest GPU", expected=f"at most {ROOM}")
    slow = f"{plan} fits, and there is a faster one: {_slowed(plan, network)}"
    refuse(seconds > SLOWER * best, slow, measured=f"{seconds:.2f} s", expected=f"at most {SLOWER * best:.2f} s")
    return figures


def _told(choose: Any) -> Any:
    """In the answer's process: the plan as plain values."""
    dist.destroy_process_group()  # so that it may simulate
    plan = choose()
    return vars(plan) if isinstance(plan, Plan) else kind_of(plan)


def _checked(told: Any) -> Plan:
    refuse(not isinstance(told, dict), "your function returns no plan: return Plan(…)", measured=told)
    numbers = {name: number(from_array(value)) for name, value in told.items() if name != "saved"}
    whole = all(one and one > 0 and one == int(one) for one in numbers.values())
    refuse(not whole, "the numbers of a plan are whole and positive", measured=numbers)
    plan = Plan(**{name: int(one) for name, one in numbers.items()}, saved=told["saved"])
    refuse(plan.saved not in ("none", "selective", "full"), '`saved` is "none", "selective" or "full"')
    refuse(why := plan.wrong(LLAMA_70B, GPUS, BATCH), f"{plan} cannot run: {why}")
    refuse(plan.pipeline > STAGES, f"at most {STAGES} stages here: each of them needs a process on this machine")
    return plan


def _fills(plan: Plan) -> str:
    """Which part of the memory is too large."""
    states = STATES * plan.replicate / GPUS
    if states > ROOM - 20:
        return f"{plan} runs out of memory. Its states take {states:.0f} GiB on each GPU: replicas do not share them"
    if plan.pipeline > 1 and (own := STATES * 6 / 16 / plan.pipeline / plan.tensor) > ROOM / 3:
        words = f"runs out of memory. A stage keeps its gathered parameters and gradients all the time: {own:.0f} GiB"
        return f"{plan} {words}. More stages or tensor parallelism make it smaller"
    ways = "a smaller micro-batch, more parts of each sequence or matrix, or less that is kept (`saved`)"
    return f"{plan} runs out of memory, and its states take {states:.0f} GiB only. Activations do: {ways}"


def _slowed(plan: Plan, network: str) -> str:
    """What costs this plan more than it costs the best one, as a sentence."""
    mine, least = _losses(plan, network), _losses(fastest(network)[1], network)
    m, into = plan.micro_batches(BATCH), _gathered(plan)
    sentences = {
        "FSDP": f"its FSDP moves {into:.0f} GB into each node, {into / GBPS[network]:.1f} s of the network",
        "bubble": f"{plan.pipeline} stages have {m} micro-batches, a bubble of {(plan.pipeline - 1) / m:.0%}",
        "tensor": "its tensor parallelism sends activations at each layer, which nothing hides",
        "context": "its ring of keys and values is not all hidden, and each GPU has fewer rows",
        "again": "it computes more of the forward pass again",
        "replicas": "its replicas exchange all gradients",
    }
    return sentences[max(mine, key=lambda name: mine[name] - least[name])]


def _gathered(plan: Plan) -> float:
    """GB that FSDP moves into each node in a step."""
    nodes = max(1, plan.shard * plan.context * plan.tensor / 8)
    each = 8 * plan.micro_batches(BATCH) if plan.pipeline == 1 else 6
    return each * llama_parameter_count(LLAMA_70B) / plan.pipeline * (nodes - 1) / nodes / 1e9


def _losses(plan: Plan, network: str) -> dict[str, float]:
    """Seconds that a plan loses, by the lecture's rules."""
    parameters, m = llama_parameter_count(LLAMA_70B), plan.micro_batches(BATCH)
    whole, nic = plan.pipeline == 1, GBPS[network] * 1e9 / 8
    busy = 6 * parameters * BATCH * 8192 / (GPUS * 0.65 * 989.5e12)
    gathering = _gathered(plan) / GBPS[network]
    own = parameters / plan.pipeline / plan.tensor / plan.shard / plan.context
    passed = 2 * plan.micro * 8192 / plan.context * LLAMA_70B.width * LLAMA_70B.layers / plan.pipeline * m
    return {
        "FSDP": max(gathering - busy, 0.1 * gathering) if whole else gathering,
        "bubble": busy * (plan.pipeline - 1) / m,
        "tensor": 10 * passed * (plan.tensor - 1) / plan.tensor / 350e9,
        "context": 8 * passed * (plan.context - 1) / plan.tensor / (350e9 if plan.context * plan.tensor <= 8 else nic),
        "again": busy * {"full": 1 / 3, "selective": 1 / 6, "none": 0}[plan.saved],
        "replicas": 8 * own * (plan.replicate - 1) / plan.replicate / nic * (m if whole else 1),
    }


@exercise(title="A plan on InfiniBand", difficulty=2, minutes=15, timeout=900, official=ON_INFINIBAND)
def on_infiniband(on_infiniband: Any) -> dict[str, Any]:
    """Judge ``on_infiniband()``, which returns a plan."""
    return _judge(on_infiniband, "InfiniBand")


@exercise(title="A plan on Ethernet", difficulty=3, minutes=25, timeout=900, official=ON_ETHERNET)
def on_ethernet(on_ethernet: Any) -> dict[str, Any]:
    """Judge ``on_ethernet()``, which returns a plan."""
    return _judge(on_ethernet, "Ethernet")
