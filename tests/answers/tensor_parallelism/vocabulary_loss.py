"""Exercise 3 of the lab on tensor parallelism: scores stay where they are. The official solution has the rest."""

import torch
import torch.distributed as dist
from known_answers import right, wrong

from checks.core import Reference

[SumOverRanks] = Reference("tensor_parallelism", "SumOverRanks").functions()


@right("an autograd function, with the gradient by hand")
def by_hand():
    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx, scores, targets, start):
            largest = scores.max(dim=1, keepdim=True).values
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
            shares = scores.sub(largest)
            place = targets - start
            rows = torch.nonzero((place >= 0) & (place < scores.shape[1])).flatten()
            both = torch.zeros(2, len(targets), dtype=scores.dtype)
            both[1, rows] = shares[rows, place[rows]]
            shares.exp_()
            both[0] = shares.sum(1)
            dist.all_reduce(both)
            shares.div_(both[0, :, None])
            ctx.save_for_backward(shares, rows, place[rows])
            return (both[0].log() - both[1]).mean()

        @staticmethod
        def backward(ctx, upstream):
            shares, rows, columns = ctx.saved_tensors
            gradient = shares.clone()
            gradient[rows, columns] -= 1
            return gradient * (upstream / len(gradient)), None, None

    return (lambda scores, targets, start: Loss.apply(scores, targets, start),)


@right("each rank's logsumexp is gathered")
def logsumexp():
    class Together(torch.autograd.Function):
        @staticmethod
        def forward(ctx, mine):
            parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, mine)
            whole = torch.stack(parts).logsumexp(0)
            ctx.save_for_backward((mine - whole).exp())
            return whole

        @staticmethod
        def backward(ctx, upstream):
            return upstream * ctx.saved_tensors[0]

    def vocabulary_loss(scores, targets, start):
        whole = Together.apply(scores.logsumexp(1))
        inside = (targets >= start) & (targets < start + scores.shape[1])
        mine = torch.where(inside, scores[torch.arange(len(targets)), torch.where(inside, targets - start, 0)], 0.0)
        return (whole - SumOverRanks.apply(mine)).mean()

    return (vocabulary_loss,)


@right("both sums in one message, and the targets by a matrix of zeros and ones")
def one_hot():
    def vocabulary_loss(scores, targets, start):
        columns = torch.arange(start, start + scores.shape[1])
        largest = scores.detach().max(1)[0]
        work = dist.all_reduce(largest, dist.ReduceOp.MAX, async_op=True)
        here = columns == targets[:, None]
        work.wait()
        found = (scores * here).sum(1) - largest * here.any(1)
        exps = (scores - largest.unsqueeze(1)).exp().sum(1)
        both = SumOverRanks.apply(torch.stack([exps, found]))
        return torch.mean(both[0].log() - both[1])

    return (vocabulary_loss,)


@right("a sum of which autograd sees this rank's part only")
def value_then_gradient():
    def vocabulary_loss(scores, targets, start):
        with torch.no_grad():
            largest = scores.amax(1)
            dist.all_reduce(largest, dist.ReduceOp.MAX)
            total = (scores - largest[:, None]).exp().sum(1)
            dist.all_reduce(total)
        place = targets - start
        rows = torch.arange(len(place))[(place >= 0) & (place < scores.shape[1])]
        found = torch.zeros_like(largest).index_put((rows,), scores[rows, place[rows]] - largest[rows])
        mine = (scores - largest[:, None]).exp().sum(1)
        others = SumOverRanks.apply(found)
        return ((total + mine - mine.detach()).log() - others).mean()

    return (vocabulary_loss,)


LARGEST, SCORES = "    largest = scores.detach().amax(1)\n", "    scores = scores - largest[:, None]\n"
wrong("scores are gathered", "scores stay where they are", {
    LARGEST: "    most = torch.tensor([scores.shape[1]])\n    dist.all_reduce(most, dist.ReduceOp.MAX)\n"
    "    padded = torch.nn.functional.pad(scores.detach(), (0, int(most) - scores.shape[1]))\n"
    "    dist.all_gather([torch.empty_like(padded) for _ in range(dist.get_world_size())], padded)\n" + LARGEST
})  # fmt: skip
wrong("in many pieces", "more than 3 all-reduces", {
    "        dist.all_reduce(y)\n": "        for one in y.split(1):\n            dist.all_reduce(one)\n"
})  # fmt: skip
wrong("the way back is cut", "the loss has lost its way back", {".mean()": ".mean().detach()"})
wrong("a list", "the loss has another shape", {".mean()": ".mean()[None]"})
wrong("the largest score is not detached", "the backward pass failed", {"scores.detach()": "scores"})
wrong("scores are changed", "changes `scores`", {SCORES: "    scores.data.sub_(largest[:, None])\n"})
wrong("targets are changed", "changes `targets`", {"place = targets - start": "place = targets.sub_(start + 1) + 1"})
wrong("scores in float64", "float64", {LARGEST: "    scores = scores.double()\n" + LARGEST})
wrong("the mean in place of the largest", "not the largest score of all ranks", {"amax(1)": "mean(1)"})
wrong("only who has no target sums", "do not call the same collectives", {
    SCORES: "    if (targets >= start).all():\n        dist.barrier()\n" + SCORES
})  # fmt: skip
