"""Checks that judge by contract: an exercise says as data what it allows, and everything else is refused.

contract.py    what an exercise declares: rules, cases, scene, judge, known mistakes; the most telling sentence
judging.py     from cases to a verdict: worlds of ranks, then the judge outside of them
clauses.py     what every exercise asks for: nothing else has changed, nothing else was called
numbers.py     numbers against float64, as exact as rounding allows
watch.py       in the rank: a learner's call, and everything around it, as plain data
snapshot.py    in the rank: a thing, by path, before and after
surroundings.py  in the rank: the process, before and after
events.py      in the rank: processes, threads, files, frames, ready-made answers
wire.py        in the rank: collectives and messages arrive when somebody waits for them, and not before
messages.py    in the rank: send and recv, told to the partner, carried when both agree
launches.py    in the rank: what is noted of each of them
gpus.py        in the rank: simulated GPUs, what is copied, computed and held on each
races.py       in the rank: streams that have to wait for each other
scenery.py     models drawn at random, with everything that is easily forgotten
"""

from checks.contracts.contract import Amount, Broken, Case, Contract, Facts, Rules
from checks.contracts.judging import cases_of, judge, refuse
from checks.contracts.numbers import compare, in_steps

__all__ = [
    "Amount",
    "Broken",
    "Case",
    "Contract",
    "Facts",
    "Rules",
    "cases_of",
    "compare",
    "in_steps",
    "judge",
    "refuse",
]
