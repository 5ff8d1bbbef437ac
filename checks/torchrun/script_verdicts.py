"""What this lab's check says about a script that ran on ranks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from checks.contracts import Broken, Case, Facts, in_steps

HELPERS = ("utils.training.exit", "utils.training.rendezvous")  # which the lectures use in scripts for torchrun
LINE = re.compile(r"epoch (\d+) step (\d+) loss (\d+\.\d{4}|nan)")
CLOSE = 0.0002  # of a loss, which is printed with four digits
CLOSE_WEIGHT = 1e-5
WEIGHTS = (
    "the losses are right, but not the saved weights: save what the last update has left, as it is (and that update "
    "needs averaged gradients too)"
)


def judge(case: Case, found: Sequence[Facts]) -> Iterator[Broken]:
    """The clauses that break where ranks do not do together what one process does.

    Args:
        case: how the script was started, and as "reference" the facts of the script in one process; its "summed" are
            the lines that it prints with gradients as many times too large as there are ranks, by their number.
        found: facts of all ranks, rank 0 first.
    """
    per_node, (reference,) = case["per node"], case["reference"]
    for rank, facts in enumerate(found):
        yield from _of_rank(rank, facts, per_node)
    yield from _samples(found, reference["reads"], per_node)
    yield from _who(found, per_node)
    if found[0]["saved"]:
        yield from _results(found, reference)
    for rank, facts in enumerate(found):
        if not facts["left"]:
            words = "never leaves the process group: end with dist.destroy_process_group()"
            yield Broken("value:left", f"rank {rank} {words}")


def _of_rank(rank: int, facts: Facts, per_node: int) -> Iterator[Broken]:
    for what, name in facts["events"]:
        if what == "looks":
            yield Broken("looks:", f"main looks into the check with {name}")
        elif name not in HELPERS:
            yield Broken("course:", f"main uses {name}: the course's own code is no answer, write it yourself")
    if not facts["groups"]:
        yield Broken("value:groups", f"no process group is made: each process trains for itself (rank {rank})")
    if set(facts["taken"]) != {rank % per_node}:
        words = f"rank {rank} must take the GPU with the number of its local rank"
        yield Broken("value:taken", words, str(facts["taken"]), str([rank % per_node]))


def _samples(found: Sequence[Facts], batches: list[list[int]], per_node: int) -> Iterator[Broken]:
    ranks = len(found)
    wanted = Counter(chain.from_iterable(batches))
    read = [Counter(chain.from_iterable(facts["reads"])) for facts in found]
    shared = [in_steps(facts["reads"], len(batches[0]) // ranks) for facts in found]
    total = sum(read, Counter())
    if ranks > 1 and all(one == wanted for one in read):
        yield Broken(
            "value:all", "every rank reads all samples, so all do the same work: give each a share of the batch"
        )
    elif ranks > per_node > 1 and all(read[rank] == read[rank % per_node] for rank in range(ranks)):
        yield Broken(
            "value:local",
            f"ranks 0 and {per_node} read the same samples: the local rank is counted on each node, the share needs "
            "the rank",
        )
    elif total != wanted:
        sample = next(one for one in (*wanted, *total) if total[one] != wanted[one])
        words = f"over all ranks, each sample must be read once in an epoch; number {sample} is not"
        yield Broken("value:once", words, f"{total[sample]} times in all epochs", f"{wanted[sample]}")
    elif len(sizes := {sum(one.values()) for one in read}) > 1:
        words = "ranks read different numbers of samples, and each has an equal share of each batch"
        yield Broken("value:shares", words, f"{min(sizes)} and {max(sizes)}", f"{wanted.total() // ranks}")
    elif any(len(mine) != len(batches) for mine in shared):
        size = sum(len(mine[0]) for mine in shared)
        yield Broken(
            "value:batch",
            f"the batch of all ranks together must stay {len(batches[0])}: learning rate and number of steps were "
            "chosen for it",
            f"{size} samples, {len(shared[0])} steps",
            f"{len(batches[0])} samples, {len(batches)} steps",
        )
    else:
        for step, batch in enumerate(batches):
            shares = [mine[step] for mine in shared]
            if Counter(chain.from_iterable(shares)) != Counter(batch):
                yield Broken("value:step", f"in step {step}, the ranks together do not read the batch of one process")
            if len(sizes := set(map(len, shares))) > 1:
                words = f"in step {step}, ranks have shares of different size"
                yield Broken("value:shares", words, str(sorted(sizes)))


def _who(found: Sequence[Facts], per_node: int) -> Iterator[Broken]:
    for what, verb in (("printed", "prints"), ("saved", "saves")):
        who = [rank for rank, facts in enumerate(found) if facts[what]]
        words = f"only rank 0 {verb}, and here rank {who[-1]} does too" if who else f"nobody {verb}: rank 0 should"
        if len(who) > 1 and who == list(range(0, len(found), per_node)):
            words = f"rank {who[1]} {verb} too: each node has a local rank 0; use the rank"
        if who != [0]:
            yield Broken(f"value:{what}", words, f"ranks {who}", "ranks [0]")


def _results(found: Sequence[Facts], reference: Facts) -> Iterator[Broken]:
    wanted, got = _losses(reference["printed"]), _losses(found[0]["printed"])
    if list(wanted) != list(got) or len(found[0]["printed"]) != len(wanted):
        mine, theirs = (one["printed"] for one in (found[0], reference))
        figures: tuple[Any, Any] = (f"{len(mine)} lines", f"{len(theirs)} lines")
        if len(mine) == len(theirs):
            figures = next(
                pair for pair in zip(mine, theirs, strict=True) if list(_losses(pair[:1])) != list(_losses(pair[1:]))
            )
        yield Broken("value:lines", "rank 0 prints other lines than the script in one process", *figures)
        return
    weights, right = found[0]["weights"], reference["weights"]
    if weights is None:
        yield Broken("value:names", "task.path holds nothing that torch.load can read with weights_only=True")
        return
    shapes, expected = ({name: shape for name, (shape, _) in one.items()} for one in (weights, right))
    if shapes != expected:
        words = "the saved state has other names or shapes than that of the model in one process"
        words += "; save model.module of a DistributedDataParallel" * any("module." in name for name in shapes)
        yield Broken("value:names", words, str(shapes), str(expected))
        return
    close = all(
        all(abs(one - other) < CLOSE_WEIGHT for one, other in zip(weights[name][1], right[name][1], strict=True))
        for name in right
    )
    summed = reference["summed"].get(f"{len(found)}")
    if summed and all(abs(got[place] - loss) < CLOSE for place, loss in _losses(summed).items()):
        yield Broken("value:summed", "the gradients of the ranks are added up, not averaged")
    averaged = "are the gradients averaged over all ranks, before each update?"
    off = [place for place, loss in wanted.items() if not abs(got[place] - loss) < CLOSE]
    if off:
        epoch, step = off[0]
        words = f"the losses are not those of one process, first in epoch {epoch}, step {step}: {averaged}"
        if (epoch, step) == (0, 0):
            words = "the losses are not those of one process, already before the first update: do all ranks start with "
            words += "the weights of seed 0, and is the printed loss the mean over all ranks, in float32?"
        if close:
            words = (
                f"the loss that rank 0 prints in epoch {epoch}, step {step} is not that of the whole batch: average "
            )
            words += "it over the ranks"
        yield Broken("value:losses", words, f"{got[off[0]]}", f"{wanted[off[0]]}")
    elif not close:
        yield Broken("value:weights", WEIGHTS)


def _losses(lines: Sequence[str]) -> dict[tuple[int, int], float]:
    matches = [LINE.fullmatch(line.strip()) for line in lines]
    return {(int(m[1]), int(m[2])): float(m[3]) for m in matches if m}
