"""Exercise 3 of the lab on context parallelism: who has which tokens. What is not here is in the official solution."""

import numpy as np
import torch
from known_answers import right, wrong


@right("the other way round: rank 0 has the middle; first all later pieces; numpy")
def middle_first():
    def my_tokens(lengths, rank, ranks):
        starts = np.cumsum([0, *lengths])
        late, early = [], []
        for start, length in zip(starts, lengths, strict=False):
            size = length // (2 * ranks)
            early.append(start + np.arange((ranks - 1 - rank) * size, (ranks - rank) * size))
            late.append(start + np.arange((ranks + rank) * size, (ranks + rank + 1) * size))
        return np.concatenate(late + early)

    def together(parts, lengths):
        order = np.concatenate([my_tokens(lengths, rank, len(parts)) for rank in range(len(parts))])
        return torch.cat(list(parts), dim=1)[:, torch.from_numpy(np.argsort(order))]

    return my_tokens, together


@right("pieces are put together, no index at all")
def by_pieces():
    def my_tokens(lengths, rank, ranks):
        found = []
        for document in torch.arange(sum(lengths)).split(lengths):
            table = document.view(2 * ranks, -1)
            found.append(table[[rank, -1 - rank]].flatten())
        return torch.cat(found)

    def together(parts, lengths):
        ranks, whole = len(parts), []
        documents = [part.split([length // ranks for length in lengths], dim=1) for part in parts]
        for pieces in zip(*documents, strict=True):
            halves = [piece.chunk(2, dim=1) for piece in pieces]
            whole += [first for first, _ in halves] + [second for _, second in reversed(halves)]
        return torch.cat(whole, dim=1)

    return my_tokens, together


PIECES = "places += [pieces[rank], pieces[2 * ranks - 1 - rank]]"
wrong(
    "every second piece of the front half",
    "how many ranks have each token",
    {PIECES: "places += [pieces[rank], pieces[2 * rank]]"},
)
wrong("the mirror image is one too far", "raised IndexError", {"2 * ranks - 1 - rank": "2 * ranks - rank"})
wrong("one stretch of a document", "pairs of query and key", {
    "chunk(2 * ranks)": "chunk(ranks)", PIECES: "places += [pieces[rank]]",
})  # fmt: skip
wrong("pieces in a list", "whole numbers", {"return torch.cat(places)": "return [one.tolist() for one in places]"})
wrong("a list comes back", "not return a tensor", {"[:, order.argsort()]": "[:, order.argsort()].tolist()"})
