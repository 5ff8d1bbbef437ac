"""Exercise 3 of the lab on tensor parallelism: cross-entropy of scores that stay where they are."""

import torch
import torch.distributed as dist
from known_answers import right, wrong


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        y = y.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def vocabulary_loss(scores, targets, start):
    largest = scores.detach().amax(1)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    scores = scores - largest[:, None]
    total = SumOverRanks.apply(scores.exp().sum(1))
    place = targets - start
    elsewhere = (place < 0) | (place >= scores.shape[1])
    found = scores.gather(1, place.masked_fill(elsewhere, 0)[:, None])[:, 0].masked_fill(elsewhere, 0.0)
    return (total.log() - SumOverRanks.apply(found)).mean()


LARGEST = "    largest = scores.detach().amax(1)\n"
MAX = "    dist.all_reduce(largest, dist.ReduceOp.MAX)\n"
SHIFT = "    scores = scores - largest[:, None]\n"
TOTAL = "    total = SumOverRanks.apply(scores.exp().sum(1))\n"
FOUND = "    found = scores.gather(1, place.masked_fill(elsewhere, 0)[:, None])[:, 0].masked_fill(elsewhere, 0.0)\n"
RESULT = "    return (total.log() - SumOverRanks.apply(found)).mean()\n"
EQUAL = {
    "10: `y.clone()` → `y`": "the sums are nobody else's",
    "9: without `y = y.clone()`": "the sums are nobody else's",
    "9: forward with `torch.set_grad_enabled(not torch.is_grad_enabled())`": "autograd sets the mode itself, before and after",
    "15: backward with `torch.set_grad_enabled(not torch.is_grad_enabled())`": "autograd sets the mode itself, before and after",
    "26: 0 → -1": "the last of one column is the first",
}


# --- right, and written differently


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


@right("sums in float64, and the targets by a matrix of zeros and ones")
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


@right("a hook gives the gradient")
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


# --- wrong

wrong("scores are gathered", "scores stay where they are", {
    LARGEST: "    most = torch.tensor([scores.shape[1]])\n    dist.all_reduce(most, dist.ReduceOp.MAX)\n"
    "    padded = torch.nn.functional.pad(scores.detach(), (0, int(most) - scores.shape[1]))\n"
    "    dist.all_gather([torch.empty_like(padded) for _ in range(dist.get_world_size())], padded)\n" + LARGEST
})  # fmt: skip
wrong("the whole is summed", "scores stay where they are", {
    LARGEST: "    whole = torch.zeros(len(scores), 400, dtype=scores.dtype)\n"
    "    whole[:, start : start + scores.shape[1]] = scores.detach()\n    dist.all_reduce(whole)\n" + LARGEST
})  # fmt: skip
wrong(
    "no largest",
    "first take each token's largest away",
    {MAX: "", LARGEST: "    largest = torch.zeros(len(scores), dtype=scores.dtype)\n"},
)
wrong("each its own largest", "has another largest taken away on each rank", {MAX: ""})
wrong("the sum is this rank's", "takes its sum of exp from this rank's scores alone", {
    TOTAL: "    total = scores.exp().sum(1)\n"
})  # fmt: skip
wrong("the target's score is this rank's", "takes the target's score less the largest only where this rank has it", {
    RESULT: RESULT.replace("SumOverRanks.apply(found)", "found")
})  # fmt: skip
wrong("no sum is over the ranks", "takes its sum of exp, and the target's score, from this rank alone", {
    "        dist.all_reduce(y)\n": ""
})  # fmt: skip
wrong("other ranks' targets count", "the loss", {FOUND: FOUND.replace(".masked_fill(elsewhere, 0.0)", "")})
wrong("the start is forgotten", "the loss", {"targets - start": "targets"})
wrong("all parts as long as this one", "the loss", {"targets - start": "targets - dist.get_rank() * scores.shape[1]"})
wrong("the sum over tokens", "is the sum over the tokens", {".mean()": ".sum()"})
wrong("the sign", "is the negative of the loss", {"    return (total": "    return -(total"})
wrong("g sums its gradient too", "backward calls dist.all_reduce", {
    "        return gradient\n": "        gradient = gradient.clone()\n        dist.all_reduce(gradient)\n        return gradient\n"
})  # fmt: skip
wrong("the way back is cut", "has lost its way back", {RESULT: RESULT.replace(".mean()", ".mean().detach()")})
wrong("the target gives no gradient", "has nothing of the target's score", {
    RESULT: RESULT.replace("apply(found)", "apply(found.detach())")
})  # fmt: skip
wrong("the upstream gradient is left out", "leaves out the gradient that the loss gets itself", {
    RESULT: RESULT.replace("    return ", "    return Alone.apply(").replace(".mean()", ".mean())"),
    "def vocabulary_loss": "class Alone(SumOverRanks):\n    forward = staticmethod(lambda ctx, loss: loss.clone())\n"
    "    backward = staticmethod(lambda ctx, gradient: torch.ones_like(gradient))\n\n\ndef vocabulary_loss",
})  # fmt: skip
wrong("copies of the scores are held", "more is held than 3 times this rank's scores", {
    SHIFT: SHIFT + "    copies = [scores * one for one in range(4)]\n    scores = scores + 0 * sum(copies)\n"
})  # fmt: skip
wrong("scores in float64", "has another shape or type", {LARGEST: "    scores = scores.double()\n" + LARGEST})
wrong("a list", "the loss", {RESULT: RESULT.replace(".mean()", ".mean()[None]")})
wrong("never waits", "never waits for", {"dist.all_reduce(y)": "dist.all_reduce(y, async_op=True)"})
wrong("in many pieces", "all_reduce", {
    "        dist.all_reduce(y)\n": "        for one in y.split(1):\n            dist.all_reduce(one)\n"
})  # fmt: skip
wrong(
    "scores are changed",
    "has other numbers than before",
    {SHIFT: "    scores.data.sub_(largest[:, None])\n    scores = scores * 1\n"},
)
wrong(
    "targets are changed",
    "has other numbers than before",
    {"    place = targets - start\n": "    place = targets.sub_(start)\n"},
)
wrong("torch's own", "which does the exercise", {
    TOTAL: "    import torch.distributed.nn.functional as functional\n    total = functional.all_reduce(scores.exp().sum(1))\n"
})  # fmt: skip
wrong("only who has a target sums", "do not call the same collectives", {
    MAX: "    if bool(((targets >= start) & (targets < start + scores.shape[1])).all()):\n        largest = largest + 0\n"
    "    else:\n        dist.all_reduce(largest, dist.ReduceOp.MAX)\n    if dist.get_rank() == 0:\n        dist.barrier()\n"
})  # fmt: skip


wrong("the largest of rank 0", "the loss", {
    MAX: "    every = [torch.empty_like(largest) for _ in range(dist.get_world_size())]\n"
    "    dist.all_gather(every, largest)\n    largest = every[0]\n"
})  # fmt: skip
wrong("three all-reduces and three all-gathers", "all-reduces and all-gathers together are more than it needs", {
    MAX: MAX + "    for _ in range(3):\n"
    "        dist.all_gather([torch.empty_like(largest) for _ in range(dist.get_world_size())], largest)\n"
})  # fmt: skip
wrong("copies of numpy's are kept", "until the backward pass more is held", {
    RESULT: "    vocabulary_loss.kept = scores.detach().numpy().repeat(4)\n" + RESULT
})  # fmt: skip


# --- wrong for some tokens only

wrong("one largest for all tokens", "first take each token's largest away", {
    LARGEST: "    largest = scores.detach().amax().expand(len(scores)).clone()\n"
})  # fmt: skip
wrong("the mean in place of the largest", "first take each token's largest away", {
    LARGEST: LARGEST.replace("amax(1)", "mean(1)")
})  # fmt: skip
wrong("the last column counts for nobody", "the loss does not have the right numbers", {
    "(place >= scores.shape[1])": "(place >= scores.shape[1] - 1)"
})  # fmt: skip
wrong("the next rank's first column counts here too", "the loss does not have the right numbers", {
    "(place >= scores.shape[1])": "(place > scores.shape[1])",
    "place.masked_fill(elsewhere, 0)[:, None]": "place.masked_fill(elsewhere, 0).clamp(max=scores.shape[1] - 1)[:, None]",
})  # fmt: skip
wrong("sums are rounded to bfloat16 on their way", "the loss does not have the right numbers", {
    "        y = y.clone()\n": "        dtype, y = y.dtype, y.bfloat16()\n", "        return y\n": "        return y.to(dtype)\n"
})  # fmt: skip
wrong("the loss lies in a buffer", "each call needs memory of its own", {
    RESULT: "    loss = (total.log() - SumOverRanks.apply(found)).mean()\n"
    "    with torch.no_grad():\n"
    "        known = vocabulary_loss.__dict__.setdefault(loss.dtype, loss.detach().clone()).copy_(loss)\n"
    "    return Placed.apply(loss, known)\n",
    "def vocabulary_loss": "class Placed(SumOverRanks):\n    forward = staticmethod(lambda ctx, loss, known: known.view_as(known))\n"
    "    backward = staticmethod(lambda ctx, gradient: (gradient, None))\n\n\ndef vocabulary_loss",
})  # fmt: skip
wrong("the gradient that arrives is doubled for whoever holds it", "`upstream` has other numbers than before", {
    RESULT: RESULT.replace("    return ", "    return Doubled.apply(").replace(".mean()", ".mean())"),
    "def vocabulary_loss": "class Doubled(SumOverRanks):\n    forward = staticmethod(lambda ctx, loss: loss.clone())\n"
    "    backward = staticmethod(lambda ctx, gradient: gradient.mul_(2) / 2)\n\n\ndef vocabulary_loss",
})  # fmt: skip


wrong(
    "the largest of one column is the column itself",
    "`scores` has other numbers than before",
    {
        LARGEST: "    largest, *others = scores.detach().unbind(1)\n    for one in others:\n"
        "        largest = torch.maximum(largest, one)\n"
    },
)
