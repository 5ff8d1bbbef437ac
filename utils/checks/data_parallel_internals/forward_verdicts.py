"""What the check says about a data-parallel forward: rows, gradients, bytes, and GPUs that work together."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from utils.checks.compare import expect, how_far
from utils.checks.data_parallel_internals.gpus import (
    CLASSES,
    CLOSE,
    MOVED,
    WIDTH,
    not_through_the_host,
    rows_on,
    total_bytes,
)
from utils.checks.verdicts import Wrong

if TYPE_CHECKING:
    pass


def judge_output(gpus: int, rows: int, number: int, step: dict[str, Any]) -> None:
    case = rows_on(rows, gpus)
    if step["home"] != ["GPU 0"]:
        raise Wrong(MOVED, measured=step["home"], expected=["GPU 0"])
    if step["kind"] != "tensor":
        raise Wrong(f"data_parallel_forward returns one tensor with all rows, not a {step['kind']}. See {case}.")
    output, right = step["output"], step["right"]
    if step["place"] != "GPU 0":
        raise Wrong("the outputs are gathered in the wrong place", measured=step["place"], expected="GPU 0")
    if list(output.shape[1:]) == list(right.shape[1:]) and len(output) < rows:
        raise Wrong(f"rows are lost: {case}, which do not divide evenly", measured=len(output), expected=rows)
    distance = how_far(output, right, **CLOSE)
    if distance is None:
        if not step["graph"]:
            raise Wrong("the output knows nothing of the replicas, so no gradient can go back: gather with autograd.")
        return
    if output.shape == right.shape and how_far(_sorted(output), _sorted(right), **CLOSE) is None:
        raise Wrong(f"the rows of the output are not in the order of the batch. See {case}.")
    if number:
        raise Wrong(
            "the first step is right; after the optimizer's step the replicas still hold the old parameters: "
            f"replicate in every step. The output of {case} is {distance}."
        )
    raise Wrong(f"the output of {case} is {distance}. Does it equal what one GPU gives?")


def _sorted(output: Any) -> list[Any]:
    return [list(row) for row in sorted(tuple(row) for row in output.tolist())]


def judge_step_gradients(gpus: int, rows: int, step: dict[str, Any]) -> None:
    mine, right, first = (step[key] for key in ("gradients", "right gradients", "gradients of GPU 0 alone"))
    case = rows_on(rows, gpus)
    if any(gradient is None for gradient in mine):
        raise Wrong(
            f"no gradient comes back to the model's own parameters: have the replicas lost the graph? See {case}."
        )
    if how_far(mine, right, **CLOSE) is None:
        return
    if how_far(mine, first, **CLOSE) is None:
        raise Wrong(f"only the gradients of GPU 0's rows come back: the other replicas are cut off. See {case}.")
    raise Wrong(f"the gradients of {case} are not those of one GPU: {how_far(mine, right, **CLOSE)}.")


def judge_where(gpus: int, rows: int, found: dict[str, Any]) -> None:
    wanted = min(gpus, rows)
    for phase in ("forward", "backward"):
        if len(found[f"{phase} on"]) < wanted:
            raise Wrong(
                f"not every GPU works in the {phase} of {rows_on(rows, gpus)}",
                measured=f"GPU {', '.join(map(str, found[f'{phase} on']))}",
                expected=f"{wanted} GPUs",
            )


def judge_bytes(gpus: int, rows: int, found: dict[str, Any]) -> int:
    """Forward: parameters out, rows out, outputs back. Backward: gradients of outputs out, gradients back."""
    away = rows - math.ceil(rows / gpus)
    parameters, inputs, outputs = (gpus - 1) * found["bytes"], 4 * WIDTH, 4 * CLASSES
    ahead, back = found["moved"]["forward"], found["moved"]["backward"]
    case = rows_on(rows, gpus)
    not_through_the_host(ahead, "outputs go")
    right = parameters + away * (inputs + outputs)
    mistakes = {
        parameters + (gpus - 1) * rows * inputs + away * outputs: "the whole batch goes to every GPU: scatter it",
        gpus * parameters
        + away * (inputs + outputs): "the model is replicated once for each GPU: replicate once a step",
        parameters + away * inputs + (gpus - 1) * rows * outputs: "every GPU gets the outputs: gather on GPU 0 only",
    }
    if (total := total_bytes(ahead.items())) in mistakes and total != right:
        raise Wrong(f"{mistakes[total]}. See {case}", measured=f"{total:,} bytes", expected=f"{right:,} bytes")
    expect(
        f"The forward of {case} moves other bytes than parameters, rows and outputs, each once",
        total,
        right,
        unit="bytes",
    )
    expect(
        f"The backward of {case} moves other bytes than gradients of outputs and of parameters, each once",
        total_bytes(back.items()),
        parameters + away * outputs,
        unit="bytes",
    )
    return total + total_bytes(back.items())


def judge_together(spans: dict[int, tuple[float, float]]) -> None:
    last_begins, first_ends = max(first for first, _ in spans.values()), min(last for _, last in spans.values())
    if last_begins < first_ends:
        return
    done = min(spans, key=lambda gpu: spans[gpu][1])
    late = max(spans, key=lambda gpu: spans[gpu][0])
    raise Wrong(
        f"the GPUs do not work at the same time: GPU {late} begins when GPU {done} has ended. A copy waits for what "
        "its GPU was given before, and the host must not wait for a result: copy everything first, then run",
        measured=f"GPU {late} begins after {spans[late][0] * 1e3:.1f} ms",
        expected=f"before GPU {done} ends, after {first_ends * 1e3:.1f} ms",
    )
