"""Check of ``TrainingSampler``: equal shares of all samples, and an order that comes from seed and epoch alone."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

from torch.utils.data import DistributedSampler

from checks.engine import Reference, leaves, refuse
from checks.labs.feeding_the_ranks.dealing import Numbered, Shares, begins_anew, dealt, often

REPEATED, GIVES = "order * math.ceil(total / self.length)", "repeated[self.rank : total : self.world_size]"
LENGTH = "    def __len__(self):\n        ### BEGIN SOLUTION\n        if self.drop_last:"
OFFICIAL = Reference("feeding_the_ranks", "TrainingSampler", {
    "drop_last is False, so no sample may be lost: pad instead": {"if self.drop_last:": "if True:"},
    "drop_last is True, so what does not fill a round is left out, not padded": {"if self.drop_last:": "if False:"},
    "more is left out than what does not fill a round":
        {"return self.length // self.world_size": "return (self.length - 1) // self.world_size"},
    "the padding takes the same sample again and again: no sample more than once more than another":
        {REPEATED: "order + order[:1] * (total - self.length)"},
    "every rank has the whole data set: a rank takes its own share": {GIVES: "order"},
    "all ranks have the same samples: rank r takes every N-th one, from r on": {GIVES: "repeated[: len(self)]"},
    "len(sampler) is not the number of indices of this rank: progress bars and schedules rely on it":
        {LENGTH: "    def __len__(self):\n        return self.length\n\n" + LENGTH.replace("__len__", "share"),
         "total = len(self)": "total = self.share()"},
})  # fmt: skip
EPOCHS = 1_000, 3, 0, 4, 1, 2  # in this order, so that who counts by himself is found out
MANY = 20  # samples: so many are not in the same order twice by chance


def draw(rng: random.Random, number: int) -> dict[str, Any]:
    """The text's examples first, and fewer samples than ranks; then any data set with and without a rest."""
    ranks = rng.randint(2, 5)
    any_rest = ranks * rng.randint(12, 30) + rng.randint(1, ranks - 1)
    some = (2, 40, False), (4, 10, False), (4, 101, True), (5, 2, False), (ranks, any_rest, False), (1, 30, True)
    ranks, samples, drop_last = some[number] if number < len(some) else (ranks, any_rest, number % 2 == 0)
    return {"ranks": ranks, "samples": samples, "drop_last": drop_last, "seed": rng.randrange(2**31) * (number > 0)}


def play(case: dict[str, Any], TrainingSampler: Callable[..., Any]) -> dict[str, Any]:
    ranks, samples, drop_last, seed = (case[name] for name in ("ranks", "samples", "drop_last", "seed"))
    share = samples // ranks if drop_last else -(-samples // ranks)

    def made(*how: Any) -> list[Any]:
        return [TrainingSampler(Numbered(samples), ranks, rank, *how) for rank in range(ranks)]

    def in_epoch(epoch: int, mine: list[Any]) -> Shares:
        for sampler in mine:
            sampler.set_epoch(epoch)
        return dealt(mine, samples)

    with leaves():
        mine = made(seed, drop_last)
        words = "DistributedSampler does the exercise: write a class of your own"
        refuse(isinstance(mine[0], DistributedSampler), words)
        lengths, unset, again = [len(one) for one in mine], dealt(mine, samples), dealt(mine, samples)
        words = (
            "the same epoch gives another order the second time: the order comes from seed and epoch alone, and each "
        )
        refuse(again != unset, words + "__iter__ begins anew, with a new generator")
        epochs = {epoch: in_epoch(epoch, mine) for epoch in EPOCHS}
        new, other_seed = in_epoch(1, made(seed, drop_last)), in_epoch(0, made(seed + 7, drop_last))
        usual = dealt(made(), samples), dealt(made(0, False), samples)
    sizes = {tuple(len(one) for one in shares) for shares in (unset, *epochs.values())}
    times = [often(shares, samples) for shares in (unset, *epochs.values())]
    least, most = min(one for one, _ in times), max(one for _, one in times)
    equal, total = sizes == {(share,) * ranks}, ranks * share
    words = "the ranks have different numbers of samples: a rank with fewer ends its epoch while the others wait for it"
    words = (
        words
        if total <= 2 * samples
        else "the padding is longer than the data set: repeat the samples as often as needed"
    )
    refuse(any(len({*one}) > 1 for one in sizes), words, measured=list(max(sizes)), expected=[share] * ranks)
    alike = len({frozenset(one) for one in unset}) == 1
    words = "samples are missing, and others come more than once: all ranks make the same order, from seed and epoch "
    refuse(equal and least == 0 and most > 1 and not alike, words + "alone, and then deal it out")
    if equal and lengths == [share] * ranks and [least, most] == [total // samples, -(-total // samples)]:
        words = (
            "a new sampler gives epoch 1 another order than one that has been through other epochs: then no run can "
        )
        refuse(new != epochs[1], words + "be resumed")
        refuse(unset != epochs[0], "before the first set_epoch, the epoch is 0")
        words = "without its last arguments the sampler is not that of seed=0 and drop_last=False"
        refuse(usual[0] != usual[1], words)
        with mock.patch("builtins.hash", lambda value, usual=hash: usual(value) ^ isinstance(value, str)):
            elsewhere = in_epoch(1, made(seed, drop_last))
        words = "in another process the same sampler makes another order: it comes from seed and epoch alone, and a "
        refuse(elsewhere != epochs[1], words + "text's hash is another one in each process")
        begins_anew(mine[0], epochs[EPOCHS[-1]][0])
        if samples >= MANY:
            _shuffled(samples, drop_last, epochs)
            refuse(other_seed == epochs[0], "the seed does not change the order")
    return {
        "the numbers of indices of the ranks": list(max(sizes)),
        "len(sampler) on each rank": lengths,
        "how often the rarest sample and the most frequent one come": [least, most],
    }


def _shuffled(samples: int, drop_last: bool, epochs: dict[int, Shares]) -> None:
    """Each epoch is shuffled anew: first all samples, then they are dealt out."""
    every = list(epochs.values())
    refuse(all(one[:-1] == sorted(one[:-1]) for one in epochs[0]), "the samples are not shuffled")
    alike = next(((a, b) for a, b in itertools.combinations(sorted(epochs), 2) if epochs[a] == epochs[b]), None)
    words = "set_epoch does not change the order" if every == every[:1] * len(every) else "two epochs have one order"
    refuse(alike, f"{words}: epochs {alike and alike[0]} and {alike and alike[1]} are alike")
    kept = [rank for rank, _ in enumerate(every[0]) if len({frozenset(shares[rank]) for shares in every}) == 1]
    words = f"rank {kept and kept[0]} keeps the samples that it had, and only shuffles them: shuffle first, deal then"
    refuse(kept and len(every[0]) > 1, words)
    counts = [Counter(itertools.chain(*shares)) for shares in every]
    odd = {frozenset(index for index in range(samples) if one[index] != 1) for one in counts}
    what = "left out: they are never trained on" if drop_last else "repeated: they weigh twice as much"
    words = f"in every epoch the same samples are {what}. Shuffle first, {'drop' if drop_last else 'pad'} then"
    refuse(len(odd) == 1 and odd != {frozenset()}, words)
