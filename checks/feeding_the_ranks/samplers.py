"""Exercise 1: the class ``TrainingSampler(dataset, world_size, rank, seed, drop_last)`` with ``set_epoch``."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Broken, Case, Contract, Facts, Rules
from checks.feeding_the_ranks import dealing
from checks.feeding_the_ranks.dealing import Shares

EPOCHS = range(8)
MANY = 20  # with so many samples, two random orders are not equal by chance


def draw(rng: random.Random) -> list[Case]:
    cases: list[Case] = []
    for case in (*dealing.cases(rng, (4, 3, 1, 2, 5)), *dealing.cases(rng, (rng.choice((2, 3)),), ranks=2)[:1]):
        for drop_last in (False, True) if case["samples"] >= MANY else (rng.random() < 0.5,):
            how = {"drop_last": drop_last, "sampler's seed": rng.choice((0, 1, rng.randrange(2**31)))}
            late = rng.randint(len(EPOCHS), 10_000)
            order = [late, *rng.sample(EPOCHS, len(EPOCHS))]
            cases.append(case | how | {"order": order, "seed": rng.getrandbits(30)})
    return cases


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import numpy
    import torch
    import torch.distributed as dist

    Sampler, length, size = watch.answers["TrainingSampler"].function, case["samples"], case["world size"]
    how, every = (case["sampler's seed"], case["drop_last"]), range(size)
    data, more = dealing.Numbered(length), dealing.Numbered(length + 3)
    with watch.step("TrainingSampler", dataset=data), dealing.hashes_of_its_own(dist.get_rank()):
        samplers = [Sampler(data, size, rank, *how) for rank in every]
        other = Sampler(more, size + 1, size, how[0] + 1, not how[1])  # at the same time
        facts["lengths"] = [len(sampler) for sampler in samplers]
        facts["unset"], facts["unset again"] = dealing.dealt(samplers), dealing.dealt(samplers)
        facts["epochs"] = {}
        for epoch in case["order"]:
            for sampler in samplers:
                sampler.set_epoch(epoch)
                next(iter(sampler), None)  # somebody stops in the middle, and begins again
            other.set_epoch(epoch + 1)
            list(itertools.islice(other, length + 4))
            facts["epochs"][epoch] = dealing.dealt(samplers)
        for sampler in samplers:
            sampler.set_epoch(1)
        facts["again"] = dealing.dealt(samplers)
        facts["beside"] = dealing.beside(samplers[0])
        facts["usual"] = [dealing.dealt([Sampler(data, size, 0, *one)]) for one in ((), (0,))]
    state = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
    for stir in (torch.manual_seed, random.seed, numpy.random.seed):  # nothing may depend on them
        stir(dist.get_rank() + 4711)
    with watch.step("TrainingSampler", dataset=data):
        samplers = [Sampler(data, size, rank, *how) for rank in every]
        for sampler in samplers:
            sampler.set_epoch(1)
        facts["new"] = dealing.dealt(samplers)
        others = [[Sampler(data, size, rank, how[0] + more, how[1]) for rank in every] for more in (1, 20_000)]
        facts["other seeds"] = [dealing.dealt(samplers) for samplers in others]
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    numpy.random.set_state(state[2])
    facts["kinds"] = dealing.kinds([facts["unset"], *facts["epochs"].values(), *facts["usual"]])


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    """The first thing that is not as it has to be; others may follow from it."""
    found = world[0]
    broken = dealing.judge_indices(case, [found["unset"], *found["epochs"].values()], found["kinds"])
    for epoch, shares in sorted(found["epochs"].items()):
        broken = broken or _sizes(case, shares, epoch) or _coverage(case, shares, epoch)
    broken = broken or _lengths(case, found) or _repeated(case, found)
    if not broken and any(facts["epochs"] != found["epochs"] for facts in world):
        words = "makes other orders in another process: the rank is the argument `rank`, and the order comes from seed "
        broken = Broken("value:process", f"the same sampler {words}and epoch alone")
    if broken := broken or (_shuffled(case, found) if case["samples"] >= MANY else None):
        yield broken


def _share(case: Case) -> int:
    """Samples of each rank: rounded up with padding, rounded down without the rest."""
    length, size = case["samples"], case["world size"]
    return length // size if case["drop_last"] else -(-length // size)


def _sizes(case: Case, shares: Shares, epoch: int) -> Broken | None:
    """Every rank gets the same number, and the right one."""
    sizes, share, drop_last = [len(one) for one in shares], _share(case), case["drop_last"]
    if sizes == [share] * len(sizes):
        return None
    if len(set(sizes)) > 1:
        why = "a rank with fewer samples ends its epoch while the others wait for it"
        if not drop_last and case["samples"] * 2 < case["world size"]:
            why = "the padding is longer than the data set: repeat the samples as often as needed"
        words = f"the ranks have different numbers of samples: {why}"
    elif sizes[0] == case["samples"] and case["world size"] > 1:
        words = "every rank has the whole data set: a rank takes its own share"
    elif sizes[0] == 0:
        words = "the ranks get nothing: does each call of __iter__ begin anew?"
    elif drop_last and sizes[0] < share:
        words = "more is left out than what does not fill a round"
    elif drop_last:
        words = "drop_last is True, so what does not fill a round is left out, not padded"
    elif sizes[0] < share:
        words = "drop_last is False, so no sample may be lost: pad instead"
    else:
        words = "each rank needs the smallest equal share"
    return Broken("value:sizes", f"in epoch {epoch}, {words}", sizes, [share] * len(sizes))


def _coverage(case: Case, shares: Shares, epoch: int) -> Broken | None:
    """All samples, once, as far as equal shares allow."""
    counts, length = dealing.counted(shares), case["samples"]
    missing = [index for index in range(length) if not counts[index]]
    twice = [index for index, count in counts.items() if count > 1]
    if case["world size"] > 1 and length >= case["world size"] and len({frozenset(share) for share in shares}) == 1:
        words = "all ranks have the same samples: rank r takes every N-th one, from r on"
        return Broken("value:same", f"in epoch {epoch}, {words}")
    if twice and (case["drop_last"] or missing):
        words = "samples are missing, and others come more than once: all ranks make the same order, from seed and "
        words += "epoch and nothing else, and then deal it out"
        return Broken("value:missing", f"in epoch {epoch}, {words}", f"{len(missing)} of {length} missing")
    if not case["drop_last"] and max(counts.values()) - min(counts.values()) > 1:
        often, times = counts.most_common(1)[0]
        words = "the padding takes the same sample again and again: no sample more than once more than another"
        return Broken("value:padding", f"in epoch {epoch}, {words}", f"sample {often} comes {times} times",
                      f"at most {min(counts.values()) + 1} times")  # fmt: skip
    return None


def _lengths(case: Case, facts: Facts) -> Broken | None:
    right = [_share(case)] * case["world size"]
    if facts["lengths"] == right:
        return None
    words = "len(sampler) is not the number of indices of this rank: progress bars and schedules rely on it"
    return Broken("value:length", words, facts["lengths"], right)


def _repeated(case: Case, facts: Facts) -> Broken | None:
    """The order comes from seed and epoch alone."""
    words = ""
    if facts["unset"] != facts["unset again"] or facts["again"] != facts["epochs"][1]:
        words = (
            "the same epoch gives another order the second time: the order comes from seed and epoch alone, so a new "
        )
        words += "generator is needed each time"
    elif facts["new"] != facts["epochs"][1]:
        words = (
            "a new sampler gives epoch 1 another order than one that has been through other epochs: then no run can "
        )
        words += "be resumed"
    elif facts["unset"] != facts["epochs"][0]:
        words = "before the first set_epoch, the epoch is 0"
    elif facts["usual"][0] != facts["usual"][1] or len(facts["usual"][0][0]) != -(
        -case["samples"] // case["world size"]
    ):
        words = "the sampler without the last arguments is not that with seed=0 and drop_last=False"
    elif facts["beside"] != [facts["again"][0]] * 2:
        words = dealing.BESIDE
    return Broken("value:again", words) if words else None


def _shuffled(case: Case, facts: Facts) -> Broken | None:
    """Each epoch is shuffled anew. (What could be so by chance, is so once in a million checks at most.)"""
    dealt, share = dict(sorted(facts["epochs"].items())), _share(case)
    if any(one == sorted(one) for shares in dealt.values() for one in shares) and share >= 10:
        return Broken("value:sorted", "the samples are not shuffled")
    for other, epoch in itertools.combinations(dealt, 2):
        if dealt[other] == dealt[epoch]:
            words = "set_epoch does not change the order"
            if any(one != dealt[epoch] for one in dealt.values()):
                words = "not every number that set_epoch gets has an order of its own"
            return Broken("value:alike", f"{words}: epochs {other} and {epoch} are alike")
    if dealt[0] in facts["other seeds"]:
        return Broken("value:seed", "the seed does not change the order")
    for rank in range(case["world size"] if case["world size"] > 1 and share > 3 else 0):
        if len({frozenset(shares[rank]) for shares in dealt.values()}) < 3:
            words = f"rank {rank} keeps the samples that it had, and only shuffles them: shuffle first, deal then"
            return Broken("value:owners", words)
    for other, epoch in itertools.combinations(dealt, 2):
        pairs, others = _neighbours(dealt[other]), _neighbours(dealt[epoch])
        if share > 3 and len(pairs & others) > len(pairs) / 2:
            words = "samples that follow each other in one epoch do so in another too: shuffle anew"
            stay = f"{len(pairs & others)} of {len(pairs)} pairs of neighbours stay"
            return Broken("value:turned", f"{words}. Compare epochs {other} and {epoch}", stay)
    odd = {frozenset(i for i in range(case["samples"]) if dealing.counted(s)[i] != 1) for s in dealt.values()}
    if odd != {frozenset()} and len(odd) < 3:
        what = "left out: they are never trained on" if case["drop_last"] else "repeated: they weigh twice as much"
        how = "drop" if case["drop_last"] else "pad"
        return Broken("value:odd", f"in every epoch the same samples are {what}. Shuffle first, {how} then")
    return None


def _neighbours(shares: Shares) -> set[frozenset[int]]:
    return {frozenset(pair) for share in shares for pair in itertools.pairwise(share)}


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    _, world = next((case, world) for case, world in played if case["samples"] == 101)
    return {
        "world sizes": dealing.worlds(played),
        "epochs dealt out": len(played) * (len(EPOCHS) + 1),
        "a rank of 4 has, of 101 samples": f"{len(world[0]['unset'][0])} (25 with drop_last)",
    }


CONTRACT = Contract(
    name="feeding_the_ranks.training",
    rules={"TrainingSampler": Rules()},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        (
            "around:*random numbers",
            "{}. The model needs them too: make a generator of its own, torch.Generator().manual_seed(…)",
        ),
        ("value:*", "{}"),
    ),
    refused=dealing.REFUSED,
    figures=figures,
)
