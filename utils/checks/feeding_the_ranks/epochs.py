"""The training loops with epoch bugs: what real ranks with real DataLoaders saw, and what is wrong with it."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable
from typing import Any

from utils.checks.verdicts import Wrong

Facts = dict[str, Any]  # what one rank saw
Seen = list[list[Any]]  # [epoch, indices] of each batch, in order
Orders = dict[int, list[list[int]]]  # epoch → indices in order, for each rank

RANKS = 2
SAMPLES, BATCH = 23, 4
SHARE = -(-SAMPLES // RANKS)  # with padding
EPOCHS, FIRST = 4, 2  # the resumed run begins with epoch 2


class Samples:
    """A data set whose samples are their own numbers, and tell in which epoch and by whom they were read."""

    epoch = -1

    def __len__(self) -> int:
        return SAMPLES

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> dict[str, int]:
        from torch.utils.data import get_worker_info

        return {"index": index, "epoch": self.epoch, "by a worker": int(get_worker_info() is not None)}


class Numbers(Samples):
    """The same, and a sample is just its number."""

    def __getitem__(self, index: int) -> int:  # type: ignore[override]
        return index


def _fork() -> None:
    """Let workers be forked everywhere: a rank's main module cannot be imported again by a spawned one."""
    if "fork" in multiprocessing.get_all_start_methods():
        multiprocessing.set_start_method("fork", force=True)


def _recorder(seen: Seen) -> Callable[[int, Any], None]:
    def step(epoch: int, batch: Any) -> None:
        seen.append([epoch, batch.tolist()])

    return step


# --- probes ----------------------------------------------------------------------------------------------------


def every_epoch(train: Any) -> Seen:
    """What this rank's steps saw in a run from the first epoch on."""
    _fork()
    seen: Seen = []
    train(Numbers(), EPOCHS, _recorder(seen))
    return seen


def resumed(train: Any) -> dict[str, Facts]:
    """A run from epoch 0 on, and one that resumes: what the steps saw, and whether workers were up in ``evaluate``."""
    _fork()
    runs = {}
    for name, first in (("whole", 0), ("resumed", FIRST)):
        seen: Seen = []
        workers: list[list[int]] = []

        def evaluate(epoch: int, workers: list = workers, seen: Seen = seen) -> None:
            workers.append([epoch, len(multiprocessing.active_children()), len(seen)])

        train(Numbers(), first, EPOCHS, _recorder(seen), evaluate)
        runs[name] = {"seen": seen, "evaluated": workers}
    return runs


def augmented(train: Any) -> Facts:
    """What this rank's steps saw: indices, the epochs that the data set believed in, and who read the samples."""
    _fork()
    seen: Seen = []
    notes: list[list[Any]] = []

    def step(epoch: int, batch: Any) -> None:
        seen.append([epoch, batch["index"].tolist()])
        notes.append([epoch, batch["epoch"].tolist(), batch["by a worker"].tolist()])

    train(Samples(), EPOCHS, step)
    return {"seen": seen, "notes": notes}


# --- judging ---------------------------------------------------------------------------------------------------


def judge_epochs(per_rank: list[Seen], first: int = 0) -> Orders:
    """Every epoch deals all samples out, each time in another order; returns the orders."""
    wanted = list(range(first, EPOCHS))
    for rank, seen in enumerate(per_rank):
        epochs = list(dict.fromkeys(epoch for epoch, _ in seen))
        if epochs != wanted:
            raise Wrong(f"rank {rank} does not train these epochs, in this order", measured=epochs, expected=wanted)
        sizes = [len(indices) for epoch, indices in seen if epoch == first]
        if sum(sizes) == SAMPLES:
            raise Wrong(
                "every rank trains on all samples: the loader needs a sampler that deals them out",
                measured=f"{SAMPLES} samples a rank and epoch",
                expected=f"{SHARE}",
            )
        if sum(sizes) < SHARE:
            raise Wrong(
                "a part of the samples is left out in every epoch: drop_last drops them",
                measured=f"{sum(sizes)} samples a rank and epoch",
                expected=f"{SHARE}",
            )
        right = [BATCH] * (SHARE // BATCH) + [SHARE % BATCH] * (SHARE % BATCH > 0)
        if sizes != right:
            raise Wrong(f"these are not batches of {BATCH} with a share of {SHARE}", measured=sizes, expected=right)
    orders = {epoch: [_order(seen, epoch) for seen in per_rank] for epoch in wanted}
    for epoch, shares in orders.items():
        _judge_partition(epoch, shares)
    for epoch in wanted:
        for other in range(first, epoch):
            if orders[other] == orders[epoch]:
                _say_alike(orders, other, epoch, first)
    return orders


def _order(seen: Seen, epoch: int) -> list[int]:
    return [index for which, indices in seen if which == epoch for index in indices]


def _judge_partition(epoch: int, shares: list[list[int]]) -> None:
    counts = Counter(index for share in shares for index in share)
    missing = SAMPLES - len(counts)
    if not missing:
        return
    if len({tuple(share) for share in shares}) == 1:
        raise Wrong(f"all ranks see the same samples in epoch {epoch}: the sampler needs to know its rank.")
    raise Wrong(
        f"the ranks shuffle differently in epoch {epoch}: seed and epoch must be the same on all of them",
        measured=f"{missing} of {SAMPLES} samples are seen by no rank",
        expected="0",
    )


def _say_alike(orders: Orders, other: int, epoch: int, first: int) -> None:
    """Two epochs have the same order: all of them, or only the first two?"""
    if all(order == orders[first] for order in orders.values()):
        if orders[first] == [sorted(share[:-1]) + share[-1:] for share in orders[first]]:  # the last one is padding
            raise Wrong("the samples are not shuffled at all.")
        raise Wrong(
            "every epoch has the same order: the sampler that deals the samples out never hears of the epoch",
            measured=f"1 order in {len(orders)} epochs",
            expected=f"{len(orders)} orders",
        )
    if (other, epoch) == (first, first + 1):
        raise Wrong(
            f"epochs {other} and {epoch} have the same order, and the later ones are one epoch late: the order is "
            "drawn when an iterator is made and fetches its first batch; set_epoch must come before"
        )
    raise Wrong(f"epochs {other} and {epoch} have the same order: give set_epoch a number that never comes again.")


def judge_resumed(per_rank: list[dict[str, Facts]]) -> None:
    """A resumed run goes on as the whole one did, and workers start on the next epoch while ``evaluate`` runs."""
    whole = judge_epochs([found["whole"]["seen"] for found in per_rank])
    late = judge_epochs([found["resumed"]["seen"] for found in per_rank], FIRST)
    for name, first in (("whole", 0), ("resumed", FIRST)):
        for found in per_rank:
            evaluated = [epoch for epoch, _, _ in found[name]["evaluated"]]
            steps = [done for _, _, done in found[name]["evaluated"]]
            if evaluated != list(range(first, EPOCHS)):
                raise Wrong(
                    "evaluate(epoch) is called once after each epoch",
                    measured=f"epochs {evaluated}",
                    expected=f"epochs {list(range(first, EPOCHS))}",
                )
            if steps != [-(-SHARE // BATCH) * (number + 1) for number in range(len(steps))]:
                raise Wrong("evaluate comes after the last step of its epoch, and before the first of the next.")
    for epoch, shares in late.items():
        if shares == whole[epoch]:
            continue
        seen = next((other for other in whole if whole[other] == shares), None)
        what = f"the order of epoch {seen}" if seen is not None else "an order that no epoch of the whole run has"
        raise Wrong(
            f"a run that resumes with epoch {FIRST} gives epoch {epoch} {what}: the epoch is counted from the very "
            "first one, also for the first iterator after resuming"
        )
    for found in per_rank:
        idle = [epoch for epoch, workers, _ in found["whole"]["evaluated"][:-1] if not workers]
        if idle:
            raise Wrong(
                f"no worker is up while epoch {idle[0]} is evaluated: the order is right, but now the next epoch waits "
                "for its workers. Keep the early iter(loader), with set_epoch before it"
            )


def judge_augmented(per_rank: list[Facts]) -> None:
    """Orders change, the data set's epoch reaches whoever reads the samples, and workers read them."""
    judge_epochs([found["seen"] for found in per_rank])
    for found in per_rank:
        if not all(all(by_worker) for _, _, by_worker in found["notes"]):
            raise Wrong(
                "samples are read by the training process itself, so the GPU waits for each: keep num_workers=1 or more"
            )
        for epoch, believed, _ in found["notes"]:
            if (other := next((one for one in believed if one != epoch), None)) is not None:
                _say_stale(epoch, other, {one for _, all_of_them, _ in found["notes"] for one in all_of_them})


def _say_stale(epoch: int, believed: int, all_believed: set[int]) -> None:
    figures = {"measured": f"epoch {believed} in a worker", "expected": f"epoch {epoch}"}
    if all_believed == {-1}:
        raise Wrong("the data set never hears of an epoch: the noise is the same in all of them", **figures)
    if len(all_believed) == 1:
        raise Wrong(
            "the workers keep the data set of the first epoch: they hold a copy that was made when they started, and "
            "set_epoch changes the original",
            **figures,
        )
    raise Wrong("the data set believes in another epoch while its samples are read", **figures)
