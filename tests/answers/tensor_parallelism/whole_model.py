"""Exercise 4 of the lab on tensor parallelism: a plan for a whole Llama."""

from known_answers import right, wrong
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

PREPARED = '    parallelize_module(model, mesh, {"blocks.*.norm1": f, "blocks.*.norm2": f})\n'
OUTPUT = "ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())"


@right("the scores are a DTensor, and the stream between the blocks too")
def tensors():
    def cut(model, mesh):
        plan = {
            "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=False),
            "norm": SequenceParallel(use_local_output=False),
            "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate(), use_local_output=False),
        }
        for number in range(len(model.blocks)):
            at = f"blocks.{number}."
            plan |= {at + name: ColwiseParallel() for name in ("q", "k", "v", "gate", "up")}
            last = RowwiseParallel(output_layouts=Shard(1), use_local_output=False)
            plan |= {at + "out": last, at + "down": last}
            plan |= {at + "norm1": SequenceParallel(), at + "norm2": SequenceParallel()}
        parallelize_module(model, mesh, plan)
        f = PrepareModuleOutput(output_layouts=Shard(1), desired_output_layouts=Replicate(), use_local_output=False)
        for block in model.blocks:
            parallelize_module(block, mesh, {"norm1": f, "norm2": f})

    return (cut,)


right("the last norm gathers", {
    '"norm": SequenceParallel()': '"norm": SequenceParallel(use_local_output=False)',
    OUTPUT: "ColwiseParallel(output_layouts=Replicate())",
    PREPARED: PREPARED[:-3] + ', "norm": f})\n',
})  # fmt: skip

wrong("nothing is cut", "tokens.weight is not cut", {
    "    parallelize_module(model, mesh, plan)\n": "    return\n    parallelize_module(model, mesh, plan)\n"
})  # fmt: skip
wrong("scores cut by vocabulary", "what a rank has of the scores has another shape", {
    OUTPUT: "ColwiseParallel(input_layouts=Shard(1))"
})  # fmt: skip
wrong("each layer gathers", "q, k and v share one all-gather", {
    "ColwiseParallel() for": "ColwiseParallel(input_layouts=Shard(1)) for", PREPARED: "",
})  # fmt: skip
wrong("norms of a rank's own tokens", "the gradients of the blocks' norms are those of this rank's tokens", {
    '    plan |= {f"blocks.*.{name}": SequenceParallel() for name in ("norm1", "norm2")}\n': ""
})  # fmt: skip


@wrong("without sequence parallel", "what a block gets is not this rank's part of the sequence")
def plain():
    def cut(model, mesh):
        columns = {f"blocks.*.{name}": ColwiseParallel() for name in ("q", "k", "v", "gate", "up")}
        rows = {f"blocks.*.{name}": RowwiseParallel() for name in ("out", "down")}
        ends = {"tokens": RowwiseParallel(input_layouts=Replicate())}
        ends["output"] = ColwiseParallel(output_layouts=Replicate())
        parallelize_module(model, mesh, columns | rows | ends)

    return (cut,)
