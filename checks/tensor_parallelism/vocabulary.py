"""Exercise 3: ``vocabulary_loss(scores, targets, start)``: cross-entropy of scores that stay where they are."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from checks.contracts import Amount, Broken, Case, Contract, Facts, Rules, compare
from checks.tensor_parallelism import parts

KINDS = ("of usual size", "very large", "very small", "largest on one rank")
MIXED = "very large for some tokens, very small for others"
NUMBERS, BYTES = 3, 8  # that a rank hands in for each token, and how large each may be
MOST = 3  # of its scores that a rank may hold beside them


def draw(rng: random.Random) -> list[Case]:
    cases: list[Case] = []
    for ranks, kinds in ((3, KINDS), (2, (MIXED,)), (rng.choice((4, 5)), rng.sample(KINDS, 2))):
        for kind in kinds:
            dtype = "float32" if kind.startswith("very") else rng.choice(("float64", "float32")) if cases else "float64"
            columns = [rng.randint(30, 60) for _ in range(ranks)]
            columns[-1] = 1 if kind == MIXED else columns[-1]
            case = {"ranks": ranks, "type": dtype, "scores": kind, "tokens": rng.randint(12, 24)}
            largest = ranks - 1 if ranks == 3 else rng.randrange(ranks)
            case |= {"which rank": largest} if kind == KINDS[3] else {}
            cases.append(case | {"columns": columns, "seed": rng.getrandbits(30)})
    return cases


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import torch
    import torch.distributed as dist

    from checks.contracts import memory

    rank, dtype, columns = dist.get_rank(), getattr(torch, case["type"]), case["columns"]
    generator = torch.Generator().manual_seed(case["seed"])
    whole = parts.randn(generator, (case["tokens"], sum(columns)), dtype) * 3
    if case["scores"].startswith("very"):
        whole += 1000 if case["scores"] != "very small" else -1000
    if case["scores"] == MIXED:
        whole[::2] -= 2000
    if case["scores"] == "largest on one rank":
        which = case["which rank"]
        whole[:, sum(columns[:which]) + case["seed"] % columns[which]] += 1000
    targets = torch.randint(sum(columns), (case["tokens"],), generator=generator)
    ends = torch.tensor(columns).cumsum(0)  # where one part ends and the next begins, targets go wrong by one
    targets[: 2 * len(ends)] = torch.cat([ends - 1, ends - torch.tensor(columns)])
    targets = targets[torch.randperm(len(targets), generator=generator)]
    start = sum(columns[:rank])
    scores = whole[:, start : start + columns[rank]].clone().requires_grad_()
    facts |= {"targets": targets.clone(), "bytes": scores.nbytes, "start": start}
    upstream = torch.tensor(0.5 + case["seed"] % 5, dtype=dtype)
    facts["upstream"] = float(upstream)
    living = memory.living(scores, targets)
    for number in parts.rounds(facts, scores):
        facts["whole"] = whole / 2**number
        # (The snapshots are not the answer's: ``living`` stands inside.)
        with watch.step("vocabulary_loss", scores=scores, targets=targets) as record, living:
            loss = watch.answers["vocabulary_loss"](parts.inside(scores), targets, start)
        facts |= {"most": living.most, "sent": [one["bytes"] for one in record["calls"]]}
        if not parts.usable(facts, "loss", loss) or loss.dim():
            return
        facts["between"] = living.now() + memory.not_tensors(watch.answers["vocabulary_loss"].function, loss)
        other = torch.ones_like(scores)[number:].requires_grad_()
        with parts.meanwhile(facts, "loss", loss):
            watch.call("vocabulary_loss", scores=other, targets=targets[number:].clone(), start=start)
        if facts["overwritten"]:
            return
        with watch.step("backward", scores=scores, targets=targets, upstream=upstream):
            loss.backward(upstream)
        parts.note_gradients(facts, scores=scores)
        loss = None


@parts.each_round
def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    import torch
    from torch.nn.functional import cross_entropy

    ranks, targets = len(world), world[0]["targets"]
    scores = world[0]["whole"].double().requires_grad_()
    loss = cross_entropy(scores, targets)
    loss.backward()
    whole, largest = scores.detach(), scores.detach().amax(1)
    own = torch.cat([part - part.amax(1, keepdim=True) for part in whole.split(case["columns"], 1)], 1)
    for rank, facts in enumerate(world):
        bound = NUMBERS * BYTES * len(targets)
        calls, sent = len(facts.get("sent", ())), sum(facts.get("sent", ()))
        if calls > NUMBERS or sent > bound:
            words = (
                "all-reduces and all-gathers together are more than it needs: three numbers for each token are enough"
            )
            need = f"at most {NUMBERS} calls, {bound:,} bytes"
            yield Broken("wire:together", words, f"{calls} calls, {sent:,} bytes", need, rank=rank)
        dtype, start = facts["whole"].dtype, facts["start"]
        here = slice(start, start + case["columns"][rank])
        mine = whole[:, here]
        inside = (targets >= start) & (targets < start + mine.shape[1])
        found = mine.gather(1, (targets - start).clamp(0, mine.shape[1] - 1)[:, None])[:, 0]
        of_all, here_or_largest = whole.logsumexp(1), torch.where(inside, found, largest)
        guesses = {
            "is the sum over the tokens: the mean is asked for": loss.detach() * len(targets),
            "takes its sum of exp from this rank's scores alone": (
                mine.logsumexp(1) - whole.gather(1, targets[:, None])[:, 0]
            ).mean(),
            "takes the target's score only where this rank has it": (of_all - found * inside).mean(),
            "takes the target's score less the largest only where this rank has it": (of_all - here_or_largest).mean(),
            "takes its sum of exp, and the target's score, from this rank alone": (
                mine.logsumexp(1) - here_or_largest
            ).mean(),
            "has another largest taken away on each rank: it has to be the same one on all": cross_entropy(
                own, targets
            ),
            "is the negative of the loss": -loss.detach(),
        }
        large = [scores.detach().abs().amax()[None]]  # a loss is the difference of scores
        where = {"steps": parts.ROUNDINGS, "beside": large, "rank": rank}
        terms = [loss.detach().to(dtype)]
        clause = "value:0 loss" if case["scores"] == KINDS[0] else "value:0 loss of large scores"
        yield from compare(clause, "the loss", facts["loss"], terms, 1.0, guesses, **where)
        if not facts.get("connected", True):
            yield Broken("value:1 cut", f"the loss {parts.CUT}", rank=rank)
        limit = MOST * facts["bytes"]
        for when, words in (("most", "while it computes"), ("between", "until the backward pass")):
            if facts.get(when, 0) > limit and case["columns"][rank] > 1:  # (a single one is no more than the targets)
                words = f"{words} more is held than {MOST} times this rank's scores"
                yield Broken("memory:whole", words, f"{facts[when]:,} bytes", f"at most {limit:,}", rank=rank)
        if "gradients" in facts:
            right = scores.grad[:, here] * facts["upstream"]
            guesses = {
                f"is {ranks} times too large: a sum over the ranks too many": ranks * right,
                "leaves out the gradient that the loss gets itself": scores.grad[:, here],
                "is that of the sum over the tokens": right * len(targets),
                "has nothing of the target's score": right + _ones(inside, targets - start, right) * facts["upstream"],
            }
            what, beside = "the gradient of the scores", [scores.grad * facts["upstream"]]
            yield from compare(
                "value:2 scores",
                what,
                facts["gradients"]["scores"],
                [right.to(dtype)],
                1.0,
                guesses,
                steps=parts.ROUNDINGS * (1 if case["scores"] == KINDS[0] else 200),  # exp of rounded scores
                beside=beside,
                rank=rank,
            )


def _ones(inside: Any, place: Any, like: Any) -> Any:
    import torch

    ones = torch.zeros_like(like)
    ones[inside, place[inside]] = 1 / len(place)
    return ones


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    case, world = played[0]
    return {
        "losses": f"{len(played)}, on {parts.world_sizes(played)} ranks",
        "all scores": f"{world[0]['whole'].nbytes:,} bytes of the first; this rank has {world[0]['bytes']:,}",
        "held while it computes": f"{world[0]['most']:,} bytes",
        "sent at most": f"{NUMBERS} numbers for each of {case['tokens']} tokens",
    }


def _sent(case: Case, rank: int, facts: Facts) -> dict[str, Amount]:
    most = NUMBERS * BYTES * case["tokens"]
    return {name: Amount(NUMBERS, most, least=0) for name in ("all_reduce", "all_gather")}


CONTRACT = Contract(
    name="tensor_parallelism.vocabulary_loss",
    rules={"vocabulary_loss": Rules(wire=_sent), "backward": Rules(changes=parts.GRADIENTS)},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(
        *parts.MISTAKES,
        ("wire:more *", "{}: scores stay where they are, three numbers for each token are enough"),
        (
            "value:0 loss of large scores:off",
            "{}. exp of a large number is inf, of a very small one 0: first take each token's largest away",
        ),
        ("value:0 *", "{}"),
        ("value:1 *", "{}"),
        ("memory:*", "{}"),
        ("wire:other *", "{}"),
        ("value:*", "{}"),
        ("wire:*", "{}"),
    ),
    refused=parts.REFUSED,
    figures=figures,
)
