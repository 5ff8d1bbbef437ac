"""Exercise 8 of the lab on feeding the ranks: a stream, dealt out to ranks and workers. What is not here is in the official solution."""

from known_answers import right, wrong
from torch.utils.data import IterableDataset, get_worker_info

GIVE = "        for index in mine:\n            yield self.source[index]"
DROP = "            length -= length % self.world_size\n"
right("a generator expression", {GIVE: "        return (self.source[index] for index in mine)\n"})


@right("blocks, and an iterator of its own class")
def blocks():
    class Share:
        def __init__(self, source, start, stop):
            self.source, self.next, self.stop = source, start, stop

        def __iter__(self):
            return self

        def __next__(self):
            if self.next >= self.stop:
                raise StopIteration
            self.next += 1
            return self.source[self.next - 1]

    class RankStream(IterableDataset):
        def __init__(self, source, world_size, rank, drop_last=False):
            super().__init__()
            self.source = source
            per, rest = divmod(len(source), world_size)
            rest = 0 if drop_last else rest
            self.begin = rank * per + min(rank, rest)
            self.end = self.begin + per + (rank < rest)

        def __iter__(self):
            info = get_worker_info()
            me, workers = (0, 1) if info is None else (info.id, info.num_workers)
            size = self.end - self.begin
            return Share(self.source, self.begin + size * me // workers, self.begin + size * (me + 1) // workers)

    return (RankStream,)


@right("rounds, counted from the end")
def rounds():
    class RankStream(IterableDataset):
        def __init__(self, source, world_size, rank, drop_last=False):
            self.args = source, world_size, rank, drop_last

        def __len__(self):
            source, world_size, rank, drop_last = self.args
            return (len(source) + (0 if drop_last else world_size - 1 - rank)) // world_size

        def __iter__(self):
            source, world_size, rank, _ = self.args
            info = get_worker_info()
            worker, workers = (info.id, info.num_workers) if info else (0, 1)
            number = len(self) - 1
            while number >= 0:
                if number % workers == worker:
                    yield source[rank + number * world_size]
                number -= 1

    return (RankStream,)


wrong(
    "the tail of all workers is dropped",
    "how many samples the ranks give",
    {DROP: DROP.replace("% self", "% (3 * self")[:-1] + ")\n"},
)
wrong(
    "a list first", "is read before somebody asks for it", {GIVE: "        return iter([self.source[i] for i in mine])"}
)
wrong("numbers, no samples", "no sample of the source", {"yield self.source[index]": "yield index"})
wrong("counts in self", "two iterators of one stream disturb each other", {
    GIVE: "        self.at = 0\n        while self.at < len(mine):\n            self.at += 1\n"
    "            yield self.source[mine[self.at - 1]]"
})  # fmt: skip
wrong("is used up", "the second epoch has other samples", {
    GIVE: "        self.rest = getattr(self, 'rest', None) or (self.source[index] for index in mine)\n        return self.rest"
})  # fmt: skip
