"""Exercise 8: ``RankStream(source, world_size, rank, drop_last)``, an ``IterableDataset`` for loaders with workers.

Whose turn it is shows in the samples that come, and in who has read them: every worker process counts for itself.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts, Rules
from checks.feeding_the_ranks import epochs
from checks.feeding_the_ranks.dealing import worlds
from checks.feeding_the_ranks.sources import WORKERS, Source

NAME, MADE, ALONE = "RankStream", "RankStream, when it is made,", "RankStream, without a loader,"
NOTHING, NO_SAMPLE = object(), -1  # where an iterator has ended; the number of a sample that is None
FEW = 3  # samples, after each of which it is asked what was read


def draw(rng: random.Random) -> list[Case]:
    """The lecture's example first; then any numbers of ranks and workers, sources shorter and longer than both."""
    sizes = [(4, 2, 20, False), (4, 3, 12 * rng.randint(1, 4) + 4 + rng.randint(1, 3), True)]
    for size in (5, 1, rng.choice((2, 3))):
        workers = rng.randint(1, WORKERS)
        sizes.append((size, workers, size * workers * rng.randint(2, 5) + rng.randint(0, size * workers), False))
    sizes += [(3, rng.randint(2, WORKERS), rng.randint(0, 4), False), (2, 0, rng.randint(5, 30), rng.random() < 0.5)]
    sizes.append((rng.randint(2, 3), rng.randint(0, WORKERS), rng.randint(5, 60), True))
    cases = [
        {"ranks": 1, "world size": size, "workers": workers, "samples": samples, "drop_last": drop_last}
        | {"batch": rng.choice((0, 0, 2, 3)), "stay": bool(workers) and rng.random() < 0.5, "seed": rng.getrandbits(30)}
        for size, workers, samples, drop_last in sizes
    ]
    cases[1] |= {"batch": 0, "None": rng.randrange(6)}  # (no None can be put into a batch)
    return cases


def scene(case: Case, watch: Any, facts: Facts) -> None:
    from torch.utils.data import DataLoader, IterableDataset

    epochs.fork()
    Stream, size, workers = watch.answers[NAME].function, case["world size"], case["workers"]
    how = (True,) if case["drop_last"] else ()
    most = case["samples"] + 5

    def loaded(loader: Any) -> list[Any]:
        return _numbers(itertools.islice(loader, most))

    facts["streams"] = []
    for rank in range(size):
        source = Source(case["seed"], case["samples"], case.get("None", -1))
        more = Source(case["seed"] + 1, case["samples"] + 2)
        found: Facts = {}
        facts["streams"].append(found)
        with watch.step(MADE, source=source):
            stream = Stream(source, size, rank, *how)
        with watch.step(NAME, source=source):
            Stream(more, size + 1, size, *(() if how else (True,)))  # of another world, at the same time
            found["iterable"] = isinstance(stream, IterableDataset)
            if not found["iterable"]:
                return
            batches = {"batch_size": case["batch"] or None, "num_workers": workers, "worker_init_fn": source.in_worker}
            loader = DataLoader(stream, **batches, persistent_workers=case["stay"])
            found["first"], found["reads"], found["talks"] = loaded(loader), source.reads(), source.talks()
            found["twice"] = source.twice(len(found["first"]))
            if rank == size - 1:
                found["second"] = loaded(loader)
            del loader
        if rank in (0, size - 1):
            with watch.step(ALONE, source=source):
                found |= _by_hand(stream, source, most)
                with contextlib.suppress(Exception):
                    found["swallowed"] = len(list(itertools.islice(Stream(Source(-1, size), size, rank), most)))


def _by_hand(stream: Any, source: Source, most: int) -> Facts:
    """Without a loader: what has been read when, and two iterators at once."""
    begun, read = sum(source.reads()), []
    one = iter(stream)
    read.append(sum(source.reads()) - begun)
    some = []
    for sample in itertools.islice(one, FEW):
        some.append(sample)
        read.append(sum(source.reads()) - begun)
    other, mixed = iter(stream), []
    for pair in itertools.islice(itertools.zip_longest(one, other, fillvalue=NOTHING), most):
        some += [pair[0]] * (pair[0] is not NOTHING)
        mixed += [pair[1]] * (pair[1] is not NOTHING)
    return {"read": read, "alone": _numbers(some), "beside": _numbers(mixed)}


def _numbers(samples: Iterable[Any]) -> list[int]:
    return epochs.numbers([NO_SAMPLE if sample is None else sample for sample in samples])


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    """The first thing that is not as it has to be; others may follow from it."""
    streams = world[0]["streams"]
    if not all(one["iterable"] for one in streams):
        yield Broken("value:kind", "the stream is no IterableDataset, so a DataLoader asks it for sample numbers")
        return
    if any(one["talks"] for one in streams):
        yield Broken("wire:other", "a worker takes part in the ranks' communication, and it is none of them")
        return
    known = {epochs.code(case["seed"], index, 0, False): index for index in range(case["samples"])}
    known |= {NO_SAMPLE: case["None"]} if "None" in case else {}
    shares = [[known.get(number) for number in one["first"]] for one in streams]
    broken = _strange(shares) or _coverage(case, shares) or _sizes(case, shares)
    for rank, one in enumerate(streams):
        broken = broken or _reads(case, one, rank) or _again(one, rank)
    if broken:
        yield broken


def _strange(shares: Sequence[Sequence[int | None]]) -> Broken | None:
    if any(None in share for share in shares):
        return Broken("value:sample", "something comes that is no sample of the source: give source[i] as it is")
    return None


def _coverage(case: Case, shares: Sequence[Sequence[Any]]) -> Broken | None:
    """All samples, each once; with drop_last, what does not fill a round of all ranks may be missing."""
    counts = Counter(index for share in shares for index in share)
    size, workers, length = case["world size"], case["workers"], case["samples"]
    times = max(counts.values(), default=1)
    if times > 1:
        within = any(len(set(share)) < len(share) for share in shares)
        words = "some samples come more than once"
        if within and workers > 1:
            words = "the workers of a rank give the same samples: each has a copy of the stream, and has to ask "
            words += "get_worker_info() which it is"
        elif not within and min(counts.values()) == size:
            words = "every rank gives the same samples: rank and world_size say which are its own"
        return Broken("value:twice", words, f"a sample comes {times} times", "once")
    missing = length - len(counts)
    if missing > (length % size if case["drop_last"] else 0):
        why = "nobody gives some of the samples"
        if not case["drop_last"] and missing == length % size:
            why = "drop_last is False, so the tail has to come too: some ranks give one sample more"
        elif case["drop_last"] and missing <= size * max(workers, 1):
            why = "too many samples are dropped: at most one less than there are ranks"
        if "None" in case and not counts[case["None"]]:
            why = f"{why}. Does sample {case['None']}, which is None, end or skip something? It is one like any other"
        figures = f"{missing} of {length} missing", f"{length % size if case['drop_last'] else 0}"
        return Broken("value:missing", why, *figures)
    return None


def _sizes(case: Case, shares: Sequence[Sequence[Any]]) -> Broken | None:
    sizes, least = [len(share) for share in shares], case["samples"] // case["world size"]
    if case["drop_last"] and set(sizes) != {least}:
        words = "drop_last is True, and the ranks do not give the same number of samples"
        return Broken("value:sizes", words, sizes, [least] * len(sizes))
    if max(sizes) - min(sizes) > 1:
        words = "the ranks' shares differ by more than one sample: divide by rank first, and a rank's share by worker"
        return Broken("value:sizes", words, sizes, f"{least} or {least + 1} each")
    return None


def _reads(case: Case, one: Facts, rank: int) -> Broken | None:
    """Who has read how much, and when."""
    alone, *by_worker = one["reads"]
    share, workers = len(one["first"]), case["workers"]
    if workers and alone:
        words = "samples are read by the training process, not by its workers: read in __iter__, one at a time"
        return Broken("value:reader", words, f"{alone} reads", "none")
    if sum(one["reads"]) != share:
        words = "samples that it does not give: reading is what costs. Work out the numbers of its own, and read those"
        words = "a sample more than once: reading is what costs" if one.get("twice") else words
        words = f"the stream of rank {rank} reads {words}"
        return Broken("value:reads", words, f"{sum(one['reads'])} reads", share)
    counts = by_worker[:workers]
    if workers and max(counts) - min(counts) > 1:
        words = f"the workers of rank {rank} have shares that differ by more than one sample: one is idle while others "
        return Broken("value:workers", words + "are at work", counts, f"of {share} samples, with {workers} workers")
    lazy = list(range(len(one.get("read", ()))))
    if "read" in one and one["read"] != lazy:
        words = (
            f"the stream of rank {rank} does not read a sample when somebody asks for it: let __iter__ read and yield"
        )
        seen = f"read after 0, 1, 2, … samples: {one['read']}"
        return Broken("value:early", words, seen, lazy)
    return None


def _again(one: Facts, rank: int) -> Broken | None:
    first = sorted(one["first"])
    if "swallowed" in one:
        words = "the source raises an error where a sample cannot be read, and the stream goes on: let it come out"
        return Broken("value:swallowed", words)
    if sorted(one.get("second", first)) != first:
        words = f"the second epoch of rank {rank} is another than the first: each call of __iter__ begins anew"
        return Broken("value:second", words, f"{len(one['second'])} samples", f"{len(first)}")
    if len(one.get("alone", first)) == len(one.get("beside", first)) != len(first):
        words = f"without workers, the stream of rank {rank} gives another share than with them: get_worker_info() is "
        return Broken(
            "value:alone", words + "None there, and the whole share is its own", len(one["alone"]), len(first)
        )
    if sorted(one.get("alone", first)) != first or sorted(one.get("beside", first)) != first:
        words = f"two iterators of one stream, on rank {rank}, disturb each other: what __iter__ counts belongs to it, "
        seen = f"{len(one['alone'])} and {len(one['beside'])} samples"
        return Broken("value:beside", words + "not to self", seen, f"{len(first)} each")
    return None


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    case, world = played[0]
    shares = ", ".join(str(len(one["first"])) for one in world[0]["streams"])
    return {
        "world sizes": worlds(played),
        "workers of a rank": f"0 to {max(case['workers'] for case, _ in played)}",
        f"shares of {case['samples']} samples, {case['world size']} ranks with {case['workers']} workers": shares,
        "reads": "each sample once, when it is asked for",
    }


CONTRACT = Contract(
    name="feeding_the_ranks.stream",
    rules={
        NAME: Rules(
            changes=("around.torch's random numbers",),  # from which a DataLoader draws
            allows=("starts:a process", "starts:a local connection"),
        ),
        MADE: Rules(),
        ALONE: Rules(),
    },
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(("wire:other*", "{}: rank and world_size are given, and that is all it takes"), ("value:*", "{}")),
    figures=figures,
)
