"""Check of ``repair``: a plan that runs out of memory comes back fitting, and as fast as such a plan can be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from checks.engine import Reference, exercise, refuse
from checks.engine.plain import kind_of
from checks.labs.choosing.simulated import BATCH, GPUS, ROOM, rows
from lessons.training.layouts import Plan
from utils.training.models import LLAMA_70B

OFFICIAL = Reference("choosing", "repair")
RUNS, SLOWER = 12, 1.03
FIXED = "context", "tensor", "pipeline"
CASES = [
    {"plan": Plan(shard=64, saved="selective")},
    {"plan": Plan(replicate=4, shard=16)},
    {"plan": Plan(shard=16, context=4, micro=4, saved="selective")},
    {"plan": Plan(shard=16, tensor=4, micro=4, saved="selective")},
    {"plan": Plan(replicate=2, shard=8, context=2, tensor=2, micro=2, saved="none")},
]


@exercise(OFFICIAL, CASES, title="A plan that does not fit", difficulty=2, minutes=20)
def repair(case: dict[str, Any], repair: Callable[..., Any]) -> dict[str, Any]:
    """Judge ``repair(plan, run)``."""
    given, known, tried = case["plan"], rows("InfiniBand"), []

    def run(plan: Plan) -> tuple[float, float]:
        refuse(not isinstance(plan, Plan), "run wants a Plan", measured=kind_of(plan))
        tried.append(_checked("runs", plan, given))
        refuse(
            len(tried) > RUNS, f"runs more than {RUNS} plans: leave out those of which you know that others are better"
        )
        return known[plan]

    found = _checked("returns", repair(given, run), given)
    seconds, gib = known[found]
    least = "replicas do not share their states: make them shards" if found.replicate > 1 else "keep less, or cut more"
    fault = f"returns {found}, which runs out of memory as well: {least}"
    refuse(gib > ROOM, fault, measured=f"{gib:.0f} GiB", expected=f"at most {ROOM}")
    best = _best(given)
    limit = SLOWER * known[best][0]
    fault = f"returns {found}, and a faster plan fits: {_better(found, best)}"
    refuse(seconds > limit, fault, measured=f"{seconds:.2f} s", expected=f"at most {limit:.2f} s")
    return {}


def _checked(what: str, plan: Any, given: Plan) -> Plan:
    """The plan, if it is one of those that may be tried."""
    refuse(not isinstance(plan, Plan), f"{what} no plan", measured=kind_of(plan))
    changed = [name for name in FIXED if getattr(plan, name) != getattr(given, name)]
    fault = f"{what} a plan with another `{'` and another `'.join(changed)}`: leave what is written into the layers"
    refuse(changed, fault, measured=plan)
    refuse(why := plan.wrong(LLAMA_70B, GPUS, BATCH), f"{what} {plan}, which is impossible: {why}")
    return plan


def _best(given: Plan) -> Plan:
    """The fastest that fits, of those that have the given one's fixed sizes."""
    known = rows("InfiniBand")
    kept = [plan for plan in known if all(getattr(plan, name) == getattr(given, name) for name in FIXED)]
    return min((plan for plan in kept if known[plan][1] <= ROOM), key=lambda plan: known[plan][0])


def _better(found: Plan, best: Plan) -> str:
    """In which way the best is better."""
    if replace(found, micro=best.micro, saved=best.saved) == best and found.micro < best.micro:
        return "larger micro-batches gather all parameters less often, and have larger products" + (
            ", which is worth more here than what is computed again" if best.saved != found.saved else ""
        )
    if found.saved != best.saved and found.micro > best.micro:
        return "with smaller micro-batches less has to be computed again"
    if found.saved != best.saved:
        return "more can be kept, so that less has to be computed again"
    return "look at replicas and micro-batches"
