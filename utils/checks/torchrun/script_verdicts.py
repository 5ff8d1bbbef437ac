"""What this lab's check says about a script that ran on ranks."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from utils.checks.verdicts import Wrong

Facts = dict[str, Any]  # of one rank: reads, taken, saved, printed, weights, groups, left
LINE = re.compile(r"epoch (\d+) step (\d+) loss ([\d.]+|nan)")
CLOSE = 0.0002  # of a loss, which is printed with four digits
CLOSE_WEIGHT = 1e-5


def judge(found: list[Facts], reference: Facts, nodes: int, per_node: int) -> None:
    """Raise Wrong with the likeliest mistake, if the ranks did not do together what one process does.

    Args:
        found: facts of all ranks, rank 0 first.
        reference: facts of the script in one process; "summed": the lines that it prints with gradients as many times
            too large as there are ranks, by their number.
        nodes, per_node: how it was started.
    """
    shape = f"{nodes} × {per_node}" if nodes > 1 else f"{per_node} rank{'s' if per_node > 1 else ''}"
    _judge_start(found, per_node, shape)
    _judge_samples(found, reference["reads"], per_node, shape)
    _judge_output(found, per_node, shape)
    _judge_results(found, reference, shape)
    for rank, facts in enumerate(found):
        if not facts["left"]:
            raise Wrong(f"rank {rank} never leaves the process group: end with dist.destroy_process_group() ({shape})")


def _judge_start(found: list[Facts], per_node: int, shape: str) -> None:
    for rank, facts in enumerate(found):
        if not facts["groups"]:
            raise Wrong(f"no process group is made: each process trains for itself ({shape}, rank {rank})")
        if facts["taken"] != [rank % per_node]:
            raise Wrong(
                f"rank {rank} must take the GPU with the number of its local rank, once ({shape})",
                measured=facts["taken"],
                expected=[rank % per_node],
            )


def _judge_samples(found: list[Facts], batches: list[list[int]], per_node: int, shape: str) -> None:
    ranks = len(found)
    wanted = Counter(sample for batch in batches for sample in batch)
    read = [Counter(sample for batch in facts["reads"] for sample in batch) for facts in found]
    total = sum(read, Counter())
    if ranks > 1 and all(one == wanted for one in read):
        raise Wrong(f"every rank reads all samples, so all do the same work: give each a share of the batch ({shape})")
    if ranks > per_node > 1 and all(read[rank] == read[rank % per_node] for rank in range(ranks)):
        raise Wrong(
            f"ranks {0} and {per_node} read the same samples: the local rank is counted on each node, the share needs "
            f"the rank ({shape})"
        )
    for sample, times in wanted.items():
        if total[sample] != times:
            raise Wrong(
                f"over all ranks, each sample must be read once in an epoch; number {sample} is not ({shape})",
                measured=f"{total[sample]} times in {times} epochs",
            )
    steps = [len(facts["reads"]) for facts in found]
    if set(steps) != {len(batches)}:
        size = sum(len(facts["reads"][0]) for facts in found if facts["reads"])
        raise Wrong(
            f"the batch of all ranks together must stay {len(batches[0])}: learning rate and number of steps were "
            f"chosen for it ({shape})",
            measured=f"{size} samples, {steps[0]} steps",
            expected=f"{len(batches[0])} samples, {len(batches)} steps",
        )
    for step, batch in enumerate(batches):
        together = Counter(sample for facts in found for sample in facts["reads"][step])
        if together != Counter(batch):
            raise Wrong(f"in step {step}, the ranks together do not read the batch of one process ({shape})")
        sizes = [len(facts["reads"][step]) for facts in found]
        if max(sizes) - min(sizes) > 0:
            raise Wrong(f"in step {step}, ranks have shares of different size ({shape})", measured=sizes)


def _judge_output(found: list[Facts], per_node: int, shape: str) -> None:
    for what, verb in (("printed", "prints"), ("saved", "saves")):
        who = [rank for rank, facts in enumerate(found) if facts[what]]
        if who == [0]:
            continue
        if not who:
            raise Wrong(f"nobody {verb}: rank 0 should ({shape})")
        if len(who) > 1 and who == list(range(0, len(found), per_node)):
            raise Wrong(f"rank {who[1]} {verb} too: each node has a local rank 0; use the rank ({shape})")
        raise Wrong(f"only rank 0 {verb}, and here rank {who[-1]} does too ({shape})", measured=f"ranks {who}")


def _judge_results(found: list[Facts], reference: Facts, shape: str) -> None:
    ranks = len(found)
    wanted, got = _losses(reference["printed"]), _losses(found[0]["printed"])
    if set(wanted) != set(got) or len(found[0]["printed"]) != len(wanted):
        raise Wrong(
            f"rank 0 prints other lines than the script in one process ({shape})",
            measured=f"{len(found[0]['printed'])} lines",
            expected=f"{len(wanted)} lines",
        )
    weights, right = found[0]["weights"], reference["weights"]
    if weights is None:
        raise Wrong(f"task.path holds nothing that torch.load can read with weights_only=True ({shape})")
    if set(weights) != set(right):
        raise Wrong(
            f"the saved state has other names than that of the model in one process; save model.module of a "
            f"DistributedDataParallel ({shape})",
            measured=sorted(weights),
            expected=sorted(right),
        )
    same_weights = all(
        abs(one - other) < CLOSE_WEIGHT for name in right for one, other in zip(weights[name], right[name], strict=True)
    )
    summed = reference["summed"].get(f"{ranks}")
    if summed and all(abs(got[place] - loss) < CLOSE for place, loss in _losses(summed).items()):
        raise Wrong(f"the gradients of the ranks are added up, not averaged ({shape})")
    for place, loss in wanted.items():
        if abs(got[place] - loss) < CLOSE:
            continue
        where = f"(epoch {place[0]}, step {place[1]}, {shape})"
        if same_weights:
            raise Wrong(
                f"the loss that rank 0 prints is not that of the whole batch: average it over the ranks {where}",
                measured=got[place],
                expected=loss,
            )
        _wrong_training(f"the losses are not those of one process {where}", got[place], loss)
    if not same_weights:
        _wrong_training(f"the losses are right, but not the saved weights ({shape})", None, None)


def _wrong_training(what: str, measured: float | None, expected: float | None) -> None:
    figures = {} if measured is None else {"measured": measured, "expected": expected}
    raise Wrong(f"{what}: are the gradients averaged over all ranks, before each update?", **figures)


def _losses(lines: list[str]) -> dict[tuple[int, int], float]:
    matches = [LINE.fullmatch(line.strip()) for line in lines]
    return {(int(m[1]), int(m[2])): float(m[3]) for m in matches if m}
