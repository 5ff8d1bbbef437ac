"""A drawn launch that has failed: who is to blame, what each of the others says, and the log of it all."""

from __future__ import annotations

import random

from checks.labs.failures_and_hangs import log_texts

KINDS = ("raised", "killed", "missing", "mismatch", "missing for NCCL", "mismatch for NCCL", "raised slowly")
SIGNALS, TERM = (9, 11, 6, 7, 8, 4), -15


def log_of(rng: random.Random, kind: str, again: int) -> str:
    """A log of this kind. ``again``: how many of them there were before."""
    world, ms = rng.randint(3, 8), rng.choice((4000, 60_000, 1_800_000))
    bad, nccl = (0, world - 1, rng.randrange(world))[min(again, 2)], kind.endswith("NCCL")
    others = [rank for rank in range(world) if rank != bad]
    first, batches = rng.choice(others), rng.randint(1, 9)  # the first that torchrun sees
    ends = [rng.choice((1, TERM)) for _ in range(world)]
    said: list[list[str]] = [[] for _ in range(world)]
    if kind.startswith("raised"):
        error = [*log_texts.OWN][6 - again if kind == "raised slowly" else -1 - again]
        said[bad] = log_texts.raised(error, wrapped=again % 2 == 1)
    if kind in ("raised", "killed"):  # at once, and all connections are closed
        ends[bad] = 1 if kind == "raised" else -SIGNALS[again % len(SIGNALS)]
        first = bad if rng.random() < 0.6 else first
        saves = rng.random() < 0.5
        for rank in others:
            if rank == first or rng.random() < 0.8:
                said[rank] = log_texts.waited(_closed(rng), saves)
            else:
                ends[rank] = TERM  # before it has noticed
    elif kind in ("raised slowly", "missing"):  # the others give up, and torchrun stops who is left
        ends[bad] = TERM
        for rank in others:
            timed_out = rank == first or rng.random() < 0.7
            words = rng.choice(log_texts.TIMED_OUT).format(ms=ms) if timed_out else _closed(rng)
            said[rank] = log_texts.waited(words)
        if kind == "missing" and again % 2:  # all but the first are stopped: that says nothing then
            ends = [TERM] * world
    elif kind == "mismatch":  # found by TORCH_DISTRIBUTED_DEBUG=DETAIL, on all ranks
        size, first = rng.randint(2, 5000), rng.randrange(world)
        odd = ("BROADCAST", f"{size}") if again % 2 else ("ALLREDUCE", f"{size + rng.randint(1, 900)}")
        prints = [odd if rank == bad else ("ALLREDUCE", f"{size}") for rank in range(world)]
        said = [log_texts.mismatch(rank, bad if rank != bad else others[0], prints, batches) for rank in range(world)]
        ends[first] = 1
    else:  # NCCL's watchdog ends who has waited for ten minutes; torchrun stops who is left
        number, size = rng.randint(50, 90_000), rng.randint(1, 3_000_000)
        odd = ("BROADCAST", f"{rng.randint(1, 9000)}") if again % 2 else ("ALLREDUCE", f"{size + rng.randint(1, 900)}")
        for rank in range(world):
            ends[rank] = rng.choice((-6, TERM))
            operation, numel = odd if rank == bad else ("ALLREDUCE", f"{size}")
            last, late = number + rng.randint(0, 5), rng.randint(1, 99)
            said[rank] = log_texts.watchdog(rank, operation, int(numel), number, last, late)
        ends[first] = -6
        if kind.startswith("missing"):
            ends[bad], said[bad] = TERM, log_texts.told(bad, first, number - 1) if again % 2 else []
    if first != bad and not nccl:
        ends[first] = 1
    return log_texts.put_together(rng, said, ends, first, batches, nccl)


def _closed(rng: random.Random) -> str:
    return rng.choice(log_texts.CLOSED).format(port=rng.randint(1024, 65_535))
