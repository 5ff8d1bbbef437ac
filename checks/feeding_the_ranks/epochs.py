"""What exercises 3 to 5 share: a data set that tells who read it and in which epoch, and what the ranks' steps saw.

A sample is a number in which its index, the epoch that the data set believed in, and the reader are hidden: only who
reads the data set can hand it to ``step``.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import multiprocessing
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from checks.contracts import Broken, Case, Facts, Rules

Orders = dict[int, list[list[int]]]  # epoch → indices in order, for each rank
BATCH = 4
MANY, MORE = 12, 20  # with so many samples, two random orders are not equal by chance, and all shares
CERTAIN = 23  # with so many, hardly ever two shares: once in 3,000 checks
ELSEWHERE = 0.3  # seconds that an evaluation lasts in a thread: a loop that does not wait for it goes on meanwhile
PATIENCE = 3.0  # seconds for workers to read their first sample, however busy the machine is
# A DataLoader draws from torch's global generator, and starts processes that send tensors to it. Numbers that Python's
# multiprocessing shares with them (a Value, a Manager) lie in a file or a folder of its own, known by name and number.
OF_MULTIPROCESSING = ("writes:*/pym-*", "writes:*/pymp-*", *("writes:" + "[0-9]" * digits for digits in (1, 2, 3)))
RULES = Rules(
    changes=("dataset.epoch", "around.torch's random numbers"),
    wire=None,
    same_calls=False,
    allows=("starts:a process", "starts:a local connection", *OF_MULTIPROCESSING),
)
MISTAKES = (
    (
        "around:the seed of *",
        "{}. The model needs them too: a sampler has a generator of its own, and knows the epoch from set_epoch",
    ),
    ("value:*", "{}"),
)


def draw(rng: random.Random, others: Sequence[int]) -> list[Case]:
    """The first one is that of the lab's text; ``others``: of how many ranks the further ones are."""
    cases = [{"ranks": 2, "samples": 23, "epochs": 4, "first": 2}]
    for ranks in others:
        samples, epochs = rng.choice((rng.randint(12, 40), rng.randint(12, 40), rng.randint(1, 11))), rng.randint(2, 6)
        cases.append({"ranks": ranks, "samples": samples, "epochs": epochs, "first": rng.randrange(epochs)})
    single = BATCH * rng.randint(3, 5) + 1  # a rank's share, whose last batch has one sample; resumed in the last epoch
    cases[-1] |= {"samples": single * cases[-1]["ranks"], "first": cases[-1]["epochs"] - 1}
    return [case | {"seed": rng.getrandbits(30)} for case in cases]


def share(case: Case) -> int:
    """Samples of a rank, with padding."""
    return -(-case["samples"] // case["ranks"])


class Samples:
    """A data set that knows its epoch. What the check notes is not in ``__dict__``, where changes are looked for."""

    __slots__ = ("__dict__", "_length", "_process", "_reads", "_secret")

    def __init__(self, case: Case) -> None:
        import torch

        self.epoch = -1
        self._length, self._secret, self._process = case["samples"], case["seed"], os.getpid()
        self._reads = torch.zeros(2, self._length, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return self._length

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> int:
        index = range(self._length)[index]
        by_worker = os.getpid() != self._process
        self._reads[int(by_worker), index] += 1
        return code(self._secret, index, int(self.epoch), by_worker)

    def read_by_workers(self) -> int:
        return int(self._reads[1].sum())

    def reads(self) -> int:
        return int(self._reads.sum())


def code(secret: int, index: int, epoch: int, by_worker: bool) -> int:
    text = f"{secret} {index} {epoch} {by_worker}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest())


def fork() -> None:
    """Let workers be forked everywhere: a rank's main module cannot be imported again by a spawned one."""
    if "fork" in multiprocessing.get_all_start_methods():
        multiprocessing.set_start_method("fork", force=True)


def recorder(seen: list[Any]) -> Callable[[int, Any], None]:
    """``step``: notes what comes."""

    def step(epoch: int, batch: Any) -> None:
        seen.append([epoch, numbers(batch)])

    return step


def numbers(batch: Any) -> list[int]:
    parts = batch.tolist() if hasattr(batch, "tolist") else batch
    return [number for part in parts for number in numbers(part)] if isinstance(parts, list | tuple) else [int(parts)]


def evaluator(data: Samples, seen: list[Any], evaluated: list[Any], last: int) -> Callable[[int], None]:
    """``evaluate``: notes how many steps were done, and whether workers read what no step has seen yet."""

    def evaluate(epoch: int) -> None:
        done = sum(len(samples) for _, samples in seen)
        idle = any(not up for *_, up in evaluated)
        until = time.monotonic() + (0 if idle or epoch == last else PATIENCE)
        while data.read_by_workers() <= done and time.monotonic() < until:
            time.sleep(0.002)
        at_work = data.read_by_workers() > done and _children()
        if threading.current_thread() is not threading.main_thread():
            time.sleep(ELSEWHERE)
        evaluated.append([epoch, len(seen), epoch == last or at_work])

    return evaluate


def _children() -> bool:
    """Whether there are child processes; where Linux does not tell, they are believed in."""
    from checks.contracts.surroundings import children  # in the rank only: it imports torch

    found = children()
    return any(found) or not found


@functools.cache
def _known(secret: int, samples: int) -> dict[int, tuple[int, int, bool]]:
    epochs = range(-1, 32)  # that a mistaken data set might believe in
    return {code(secret, *key): key for key in itertools.product(range(samples), epochs, (False, True))}


def decoded(case: Case, seen: Sequence[Any]) -> list[tuple[int, list[tuple[int, int, bool] | None]]]:
    """For each batch its epoch, and of each sample (index, the data set's epoch, whether a worker has read it)."""
    known = _known(case["seed"], case["samples"])
    return [(epoch, [known.get(number) for number in numbers]) for epoch, numbers in seen]


def orders(case: Case, runs: Sequence[Facts], first: int = 0) -> Orders | Broken:
    """The order in each epoch, or what is wrong with it: all samples are dealt out, each time in another order.

    ``runs``: of each rank, what its steps have ``seen`` and how many ``reads`` that took.
    """
    wanted, size = list(range(first, case["epochs"])), share(case)
    full = [BATCH] * (size // BATCH) + [size % BATCH] * (size % BATCH > 0)
    found: Orders = {epoch: [] for epoch in wanted}
    for rank, run in enumerate(runs):
        batches = decoded(case, run["seen"])
        epochs = list(dict.fromkeys(epoch for epoch, _ in batches))
        if epochs != wanted:
            return Broken("value:epochs", f"rank {rank} does not train these epochs, in this order", epochs, wanted)
        if any(None in samples for _, samples in batches):
            words = "what comes to step is no sample of the data set, or one that was read with a strange epoch"
            return Broken("value:samples", words, rank=rank)
        for epoch in wanted:
            sizes = [len(samples) for which, samples in batches if which == epoch]
            if sizes != full:
                return _sizes(case, epoch, sizes, full)
            found[epoch].append([sample[0] for which, part in batches if which == epoch for sample in part if sample])
    return _partition(case, found) or _alike(case, found) or _kept(case, found) or _often(case, runs, wanted) or found


def _sizes(case: Case, epoch: int, sizes: list[int], full: list[int]) -> Broken:
    total, size = sum(sizes), share(case)
    figures = f"{total} samples of a rank in epoch {epoch}", f"{size}"
    if total == case["samples"] and total != size:
        words = "every rank trains on all samples: the loader needs a sampler that deals them out"
        return Broken("value:all", words, *figures)
    if total < size:
        words = "a part of the samples is left out: does drop_last drop them?"
        return Broken("value:dropped", words, *figures)
    return Broken("value:batches", f"these are not batches of {BATCH} with a share of {size}", sizes, full)


def _partition(case: Case, found: Orders) -> Broken | None:
    for epoch, shares in found.items():
        missing = case["samples"] - len(Counter(index for share in shares for index in share))
        if missing and len({tuple(share) for share in shares}) == 1:
            words = f"all ranks see the same samples in epoch {epoch}: the sampler needs to know its rank"
            return Broken("value:same", words)
        if missing:
            words = f"the ranks shuffle differently in epoch {epoch}: seed and epoch must be the same on all of them"
            seen = f"{missing} of {case['samples']} samples are seen by no rank"
            return Broken("value:partition", words, seen, "0")
    return None


def _alike(case: Case, found: Orders) -> Broken | None:
    """Two epochs have the same order: all of them, or only the first two?"""
    epochs = list(found)
    pairs = [(one, two) for two in epochs for one in range(epochs[0], two) if found[one] == found[two]]
    if case["samples"] < MANY:
        return None
    first = found[epochs[0]]
    if case["samples"] / case["ranks"] > 8 and first == [sorted(share[:-1]) + share[-1:] for share in first]:
        return Broken("value:sorted", "the samples are not shuffled at all")  # (the last one is padding)
    if not pairs:
        return None
    one, two = pairs[0]
    if len(epochs) > 1 and all(order == first for order in found.values()):
        words = "every epoch has the same order: the sampler that deals the samples out has to hear of each epoch, "
        words += "before its order is drawn"
        return Broken("value:alike", words, f"1 order in {len(epochs)} epochs", f"{len(epochs)} orders")
    if (one, two) == tuple(epochs[:2]):
        words = (
            "have the same order, and the later ones are one epoch late: the order is drawn when an iterator is made "
        )
        words += "and fetches its first batch; set_epoch must come before"
        return Broken("value:late", f"epochs {one} and {two} {words}")
    words = f"epochs {one} and {two} have the same order: give set_epoch a number that never comes again"
    return Broken("value:again", words)


def _kept(case: Case, found: Orders) -> Broken | None:
    """Whether every rank has the same samples in two epochs, but for one of padding; with few samples, in most."""
    if case["samples"] < MORE or case["ranks"] == 1 or len(found) == 1:
        return None
    kept = [pair for pair in itertools.combinations(found, 2)
            if all(len(set(one) & set(other)) >= len(one) - 1
                   for one, other in zip(*(found[epoch] for epoch in pair), strict=True))]  # fmt: skip
    if not kept or (case["samples"] < CERTAIN and len(kept) < len(found) - 1):
        return None
    words = (
        f"in epoch {kept[0][1]} the ranks keep the samples that they had in epoch {kept[0][0]}, and only shuffle them"
    )
    return Broken("value:kept", f"{words}: shuffle all of them first, deal out then")


def _often(case: Case, runs: Sequence[Facts], epochs: Sequence[int]) -> Broken | None:
    """Whether a rank reads more than its shares, and the first batches of an epoch that does not come."""
    most = share(case) * (len(epochs) + 1)
    rank = next((rank for rank, run in enumerate(runs) if run["reads"] > most), None)
    if rank is None:
        return None
    words = "samples are read that no step gets: reading is what a loader is slow at"
    return Broken("value:often", words, f"{runs[rank]['reads']} reads", f"{share(case) * len(epochs)}", rank=rank)


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    ranks = ", ".join(str(count) for count in dict.fromkeys(case["ranks"] for case, _ in played))
    return {"ranks": ranks, "epochs": sum(case["epochs"] for case, _ in played)}
