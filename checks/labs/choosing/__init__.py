"""The exercises of this lab. Two are judged by running the layout that an answer chooses (see ``simulated.py``).

reasoning.py   reasons: bytes, bubble and seconds of a plan, by hand
planning.py    on_infiniband, on_ethernet: a plan within 5 % of the best
repairing.py   repair: a plan that runs out of memory
finishing.py   long_run: days, failures and euros of 15 trillion tokens
simulated.py   seconds and GiB of a plan, and simulated.json: of those that have run before
"""

from __future__ import annotations

from typing import Any

from checks.engine import judge
from checks.engine.exercises import exercise
from checks.labs.choosing import finishing, planning, reasoning, repairing


@exercise(title="The reasons, as numbers", difficulty=2, minutes=25, official=reasoning.OFFICIAL)
def reasons(reasons: Any) -> dict[str, Any]:
    """Judge ``reasons(plan, nics)``."""
    return judge(reasoning.OFFICIAL, reasoning.play, reasoning.draw, reasons, timeout=30)


@exercise(title="A plan on InfiniBand", difficulty=2, minutes=15, timeout=900, official=planning.ON_INFINIBAND)
def on_infiniband(on_infiniband: Any) -> dict[str, Any]:
    """Judge ``on_infiniband()``, which returns a plan."""
    return planning.judge(on_infiniband, "InfiniBand")


@exercise(title="A plan on Ethernet", difficulty=3, minutes=25, timeout=900, official=planning.ON_ETHERNET)
def on_ethernet(on_ethernet: Any) -> dict[str, Any]:
    """Judge ``on_ethernet()``, which returns a plan."""
    return planning.judge(on_ethernet, "Ethernet")


@exercise(title="A plan that does not fit", difficulty=2, minutes=20, official=repairing.OFFICIAL)
def repair(repair: Any) -> dict[str, Any]:
    """Judge ``repair(plan, run)``."""
    return judge(repairing.OFFICIAL, repairing.play, repairing.CASES, repair)


@exercise(title="Fifteen trillion tokens", difficulty=2, minutes=20, official=finishing.OFFICIAL)
def long_run(long_run: Any) -> dict[str, Any]:
    """Judge ``long_run(tokens, step_tokens, seconds, gpus, failure_hours, save, restart, price)``."""
    return judge(finishing.OFFICIAL, finishing.play, finishing.draw, long_run, timeout=30)
