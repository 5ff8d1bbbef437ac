"""Exercise 1: ``load(store, rank, world_size)``: of what N ranks have saved, the rows of one of M, and no byte more."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from checks.contracts import Broken, Case, Contract, Facts, Rules
from checks.contracts.guarding import guarded
from checks.plain import bits
from checks.sharded_checkpoints.sharded_store import Reshard, Store, cuts, make_store, share, tensors
from checks.verdicts import Wrong

if TYPE_CHECKING:
    import torch

PAIRS = ((4, 2), (2, 3), (4, 3), (1, 4), (3, 5), (4, 1), (11, 2), (2, 9), (3, 3))  # those of the lab's text
UNEVEN = ((4, 3), (5, 2))
TYPES = ("float32", "float64", "bfloat16", "float16", "int64", "int32", "int16", "uint8", "bool", "complex64")


def draw(rng: random.Random) -> list[Case]:
    """The pairs of the text with the tensors of the lab, and others, cut anywhere, with tensors that are drawn."""
    cases: list[Case] = [{"reshard": [*pair, False, None]} for pair in PAIRS]
    cases += [{"reshard": [*pair, True, None]} for pair in UNEVEN]
    for gaps, count in ((False, 3), (True, 6), (False, 1), (True, len(TYPES))):
        reshard = [rng.randint(1, 6), rng.randint(1, 5), False, rng.getrandbits(30), gaps]
        cases.append({"reshard": reshard, "types": rng.sample(TYPES, count)})
    shown = [f"{Reshard(*case['reshard'])}" for case in cases]
    return [{"ranks": 1, "saved → loaded": s} | c | {"seed": 0} for s, c in zip(shown, cases, strict=True)]


def whole_of(case: Case) -> dict[str, torch.Tensor]:
    """What was saved: the tensors of the lab, or drawn ones."""
    import torch

    reshard = Reshard(*case["reshard"])
    if reshard.seed is None:
        return tensors()
    dice, found = random.Random(reshard.seed), {}
    generator = torch.Generator().manual_seed(reshard.seed)
    for name, kind in enumerate(case["types"]):
        shape = [dice.choice((0, 1, 2, dice.randint(3, 40))), *(dice.randint(1, 5) for _ in range(dice.randint(0, 3)))]
        shape += [1] * (name == 0)
        found[f"layers.{name}.weight"] = _anybits(shape, getattr(torch, kind), generator)
    return found


def _anybits(shape: Sequence[int], kind: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Also numbers that no float32 holds, -0.0 and NaN: a tensor comes back as it was, bit for bit."""
    import torch

    largest = 2 if kind == torch.bool else 256
    drawn = torch.randint(largest, (math.prod(shape) * kind.itemsize,), generator=generator, dtype=torch.uint8)
    drawn[: kind.itemsize] = largest - 1  # all bits of the first number: NaN, of each type that has one
    return drawn.view(kind).reshape(shape)


class Guarded:
    """A ``Store`` as an answer gets it: what it holds cannot be reached from here."""

    __slots__ = ("__dict__", "files", "index", "read")

    def __init__(self, store: Store) -> None:
        def read(file: str, offset: int, size: int) -> bytearray:
            try:
                return store.read(file, offset, size)
            except EOFError:
                raise Wrong(
                    "the loader reads beyond the end of a file",
                    measured=f"bytes {offset:,} to {offset + size:,} of {file}",
                    expected=f"it has {len(store._contents[file]):,}",
                ) from None

        self.files, self.index, self.read = map(guarded, (store.files, store.index, read))


def scene(case: Case, watch: Any, facts: Facts) -> None:
    import torch

    whole, reshard = whole_of(case), Reshard(*case["reshard"])
    facts["ranks"] = []
    for rank in range(reshard.loaded):
        store = make_store(whole, reshard)
        guarded = Guarded(store)
        result = watch.call("load", store=guarded, rank=rank, world_size=reshard.loaded)
        found = {"result": type(result).__name__, "reads": store.reads, "asked": store.asked}
        if isinstance(result, dict):
            found["tensors"] = {str(name): one for name, one in result.items() if isinstance(one, torch.Tensor)}
            found["others"] = {str(k): type(v).__name__ for k, v in result.items() if not isinstance(v, torch.Tensor)}
        facts["ranks"].append(found)


def needed(whole: dict[str, torch.Tensor], case: Reshard, rank: int) -> dict[str, dict[str, int]]:
    """For each file that holds rows of this rank: its bytes, and the number of pieces (one per tensor)."""
    found: dict[str, dict[str, int]] = {}
    for tensor in whole.values():
        row = tensor.element_size() * math.prod(tensor.shape[1:])
        mine = share(len(tensor), rank, case.loaded)
        for saver, cut in enumerate(cuts(len(tensor), case)):
            rows = min(mine[1], cut[1]) - max(mine[0], cut[0])
            if rows > 0:
                facts = found.setdefault(case.file(saver), {"bytes": 0, "pieces": 0})
                facts["bytes"] += rows * row
                facts["pieces"] += 1
    return found


def judge(case: Case, world: Sequence[Facts]) -> Iterator[Broken]:
    """Right values and types first, then no byte read that is not needed; the first thing that is not so."""
    whole, reshard = whole_of(case), Reshard(*case["reshard"])
    for judged in (_values, _reads):
        for rank, facts in enumerate(world[0]["ranks"]):
            if broken := judged(reshard, rank, facts, whole):
                yield Broken(broken.clause, f"rank {rank}: {broken.sentence}", broken.measured, broken.expected)
                return


def _values(case: Reshard, rank: int, facts: Facts, whole: dict[str, torch.Tensor]) -> Broken | None:
    import torch

    if "tensors" not in facts:
        return Broken("value:kind", "load returns a dictionary from names to tensors", facts["result"], "dict")
    if missing := [name for name in whole if name not in facts["tensors"] and name not in facts["others"]]:
        return Broken("value:missing", f"{', '.join(missing)} missing: a rank without rows gets a tensor with none")
    if strange := sorted((set(facts["tensors"]) | set(facts["others"])) - set(whole)):
        return Broken("value:names", f"there is no tensor {', '.join(strange[:3])}")
    for name, tensor in whole.items():
        first, last = share(len(tensor), rank, case.loaded)
        if name in facts["others"]:
            return Broken("value:kind", f"{name} is not a tensor", facts["others"][name], "Tensor")
        right, mine = tensor[first:last], facts["tensors"][name]
        if mine.dtype != right.dtype:
            return Broken("value:dtype", f"{name} has another data type", str(mine.dtype), str(right.dtype))
        if mine.shape[1:] != right.shape[1:] or mine.dim() != right.dim():
            return Broken("value:shape", f"{name} has another shape", str(list(mine.shape)), str(list(right.shape)))
        if len(mine) != len(right):
            words = "has the wrong number of rows: shares differ by at most one, and the first ranks have one more"
            return Broken("value:rows", f"{name} {words}", len(mine), f"{len(right)} of {len(tensor)}")
        if torch.equal(bits(mine), bits(right)):
            continue
        if sorted(bits(row).tolist() for row in mine) == sorted(bits(row).tolist() for row in right):
            words = "has the right rows in the wrong order: sort by rows, not by the names of files"
            return Broken("value:order", f"{name} {words}")
        return Broken("value:wrong", f"{name} has the wrong rows", None, f"rows {first} to {last - 1}")
    return None


def _reads(case: Reshard, rank: int, facts: Facts, whole: dict[str, torch.Tensor]) -> Broken | None:
    wanted, asked = needed(whole, case, rank), facts["asked"]
    total, right = sum(size for _, _, size in facts["reads"]), sum(one["bytes"] for one in wanted.values())
    if len(asked) > len(set(asked)):
        return Broken("value:index", "an index is read more than once", len(asked), len(set(asked)))
    if strangers := sorted({file for file, _, _ in facts["reads"]} - set(wanted)):
        words = "files are read that hold no row of this rank"
        measured = f"{len(strangers)} of them ({', '.join(strangers[:3])}), {total:,} bytes in all"
        return Broken("value:files", words, measured, f"{', '.join(wanted) or 'none'}, {right:,} bytes")
    if total != right:
        words = "more is read than this rank needs: begin and end with its own rows, not with those of the file"
        if total < right:
            words = "less is read than this rank needs: where do the other rows come from?"
        return Broken("value:bytes", words, f"{total:,} bytes", f"{right:,}")
    pieces = sum(one["pieces"] for one in wanted.values())
    if len(facts["reads"]) > pieces:
        words = "too many small reads: the rows of a tensor lie side by side in a file"
        return Broken("value:pieces", words, len(facts["reads"]), f"at most {pieces}")
    return None


def figures(played: Sequence[tuple[Case, Sequence[Facts]]]) -> dict[str, Any]:
    _, world = played[0]
    reads = [read for facts in world[0]["ranks"] for read in facts["reads"]]
    return {
        "numbers of ranks": f"{len(played)} pairs, such as 4 → 2, 2 → 3, 2 → 9",
        "bytes read": f"{sum(size for *_, size in reads):,} by all ranks, each byte once",
        "reads": f"{len(reads)} for {Reshard(*PAIRS[0])}",
    }


CONTRACT = Contract(
    name="sharded_checkpoints.reshard",
    rules={"load": Rules(allows=("course:checks.sharded_checkpoints.sharded_store",))},
    draw=draw,
    scene=scene,
    judge=judge,
    mistakes=(("value:*", "{}"),),
    figures=figures,
)
