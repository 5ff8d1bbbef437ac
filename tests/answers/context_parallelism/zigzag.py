"""Exercise 3 of the lab on context parallelism: who has which tokens. What is not here is in the official solution."""

import numpy as np
import torch
from known_answers import right, wrong


@right("lists, and places that are filled in")
def lists():
    def my_tokens(lengths, rank, ranks):
        places, start = [], 0
        for length in lengths:
            size = length // (2 * ranks)
            for piece in (rank, 2 * ranks - 1 - rank):
                places.extend(range(start + piece * size, start + (piece + 1) * size))
            start += length
        return places

    def together(parts, lengths):
        whole = torch.empty(parts[0].shape[0], sum(lengths), *parts[0].shape[2:], dtype=parts[0].dtype)
        for rank, part in enumerate(parts):
            whole[:, my_tokens(lengths, rank, len(parts))] = part
        return whole

    return my_tokens, together


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


@right("scattered back")
def scattered():
    def my_tokens(lengths, rank, ranks):
        document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
        place = torch.cat([torch.arange(length) for length in lengths])
        piece = place * 2 * ranks // torch.tensor(lengths)[document]
        return ((piece == rank) | (piece == 2 * ranks - 1 - rank)).nonzero().flatten()

    def together(parts, lengths):
        joined, ranks = torch.cat(parts, 1), len(parts)
        order = torch.cat([my_tokens(lengths, rank, ranks) for rank in range(ranks)])
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(len(order))
        return joined.index_select(1, inverse)

    return my_tokens, together


PIECES = "places += [pieces[rank], pieces[2 * ranks - 1 - rank]]"
wrong(
    "every second piece of the front half",
    "how many ranks have each token",
    {PIECES: "places += [pieces[rank], pieces[2 * rank]]"},
)
wrong("the mirror image is one too far", "raised IndexError", {"2 * ranks - 1 - rank": "2 * ranks - rank"})
wrong("a piece is left out", "how many ranks have each token", {PIECES: "places += [pieces[rank]]"})
wrong("one stretch of a document", "pairs of query and key", {
    "chunk(2 * ranks)": "chunk(ranks)", PIECES: "places += [pieces[rank]]",
})  # fmt: skip
wrong("four pieces of each document", "pieces of a rank, beyond two", {
    "lengths:\n        pieces = torch.arange(start, start + length).chunk(2 * ranks)\n":
    "lengths:\n        pieces = torch.arange(start, start + length).chunk(4 * ranks)\n        "
    "pieces += (pieces[-1][:0],) * (4 * ranks - len(pieces))\n",
    PIECES: "\n        for one in (0, 2 * ranks):\n            both = (rank, 2 * ranks - 1 - rank)\n"
    "            places += [pieces[one + two] for two in both]",
})  # fmt: skip
wrong(
    "true and false",
    "whole numbers",
    {"return torch.cat(places)": "return torch.isin(torch.arange(sum(lengths)), torch.cat(places))"},
)
wrong("pieces in a list", "whole numbers", {"return torch.cat(places)": "return [one.tolist() for one in places]"})
wrong("places from 1 on", "not in the sequence", {"return torch.cat(places)": "return torch.cat(places) + 1"})
wrong("along the batch", "raised", {"torch.cat(parts, 1)[:, order.argsort()]": "torch.cat(parts)[order.argsort()]"})
wrong("a list comes back", "not return a tensor", {"[:, order.argsort()]": "[:, order.argsort()].tolist()"})
wrong("sorted by value", "what together returns", {"[:, order.argsort()]": ".sort(1).values"})
wrong(
    "parts are joined in place",
    "changes `parts`",
    {"    return torch.cat(parts, 1)": "    parts[0] *= 2\n    return torch.cat(parts, 1)"},
)
wrong(
    "lengths are used up",
    "changes `lengths`",
    {
        "    return torch.cat(places)": "    lengths.sort(reverse=True)\n    lengths[0] += 1\n    return torch.cat(places)"
    },
)
