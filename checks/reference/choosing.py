import math


from dataclasses import replace


from itertools import product


from checks.labs import choosing as check


from lessons.training.layouts import Plan, simulate


from utils.training.models import LLAMA_70B, llama_parameter_count


PARAMETERS = llama_parameter_count(LLAMA_70B)


AGAIN = {"full": 4 / 3, "selective": 7 / 6, "none": 1}  # all work, with what is computed again


INFINIBAND = {"network": "InfiniBand NDR"}  # 50 GB/s for each GPU


ETHERNET = {"network": "Ethernet 100 Gbit/s", "nics_per_node": 1}  # 12.5 GB/s for each node


def run(plan, network=INFINIBAND):
    """Seconds of a step and GiB of the fullest GPU (simulated)."""
    return simulate([plan], LLAMA_70B, gpus=64, batch=64, **network)[0]


def reasons(plan, nics):
    ### BEGIN SOLUTION
    states = 16 * PARAMETERS / plan.gpus * plan.replicate / 2**30
    m = plan.micro_batches(64)
    nodes = max(1, plan.shard * plan.context * plan.tensor / 8)
    each = m * (2 + 2 + 4) if plan.pipeline == 1 else (2 + 4)
    traffic = each * PARAMETERS / plan.pipeline * (nodes - 1) / nodes / 1e9
    bubble = (plan.pipeline - 1) / m
    compute = 6 * PARAMETERS * 64 * 8192 * AGAIN[plan.saved] / (64 * 989.5e12) * (1 + bubble)
    return states, traffic, bubble, max(compute, traffic / nics)


def on_infiniband():
    ### BEGIN SOLUTION
    return Plan(shard=64)


def on_ethernet():
    ### BEGIN SOLUTION
    return Plan(context=2, tensor=4, pipeline=8, saved="none")


def repair(plan, run):
    ### BEGIN SOLUTION
    plan = replace(plan, shard=plan.shard * plan.replicate, replicate=1)
    fit = {}
    for micro in (1, 2, 4, 8):
        if 64 % (plan.shard * micro):
            break
        for saved in ("none", "selective", "full"):
            one = replace(plan, micro=micro, saved=saved)
            seconds, gib = run(one)
            if gib <= 74:
                fit[one] = seconds
                break
    return min(fit, key=fit.get)


def long_run(tokens, step_tokens, seconds, gpus, failure_hours, save, restart, price):
    ### BEGIN SOLUTION
    pure = math.ceil(tokens / step_tokens) * seconds
    between = failure_hours * 3600 / gpus
    every = math.sqrt(2 * save * between)
    lost = save / every + every / 2 / between + restart / between
    whole = pure * (1 + lost)
    return whole / 86400, every / 60, whole / 3600 * gpus * price
