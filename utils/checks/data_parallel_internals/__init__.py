"""The exercises of lab 03: data parallelism written out of scatter, replicate, apply and gather."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from utils.checks import Wrong, exercise, expect, how_far, run, run_cases
from utils.checks.data_parallel_internals import probes

SECONDS = 20  # for each process; on a busy machine importing what simulated GPUs need takes some
CLOSE = {"relative": 1e-4, "absolute": 1e-5}  # sums in another order


def _on(rows: int, gpus: int) -> str:
    return f"{rows} row{'s' if rows > 1 else ''} on {gpus} GPUs"


def _total(moved: Iterable[tuple[str, int]]) -> int:
    return sum(nbytes for _, nbytes in moved)


def _not_through_the_host(moved: dict[str, int], what: str) -> None:
    if link := next((link for link in moved if link.endswith("host")), None):
        raise Wrong(
            f"{what} through the host: a copy from GPU to GPU needs no stop there",
            measured=f"{moved[link]:,} bytes {link}",
            expected="0 bytes",
        )


# --- 1: scatter ------------------------------------------------------------------------------------------------

ROW_BYTES = 16
BATCHES = tuple(
    (rows, gpus, start)
    for rows, gpus in (
        (8, (0, 1, 2, 3)),
        (10, (0, 1, 2, 3)),
        (7, (0, 1, 2)),
        (5, (0, 1, 2, 3)),
        (2, (0, 1, 2, 3)),
        (1, (0, 1)),
        (9, (2, 0, 1)),
    )
    for start in ("host", "first GPU")
)


@exercise(title="Scatter the batch", difficulty=1, minutes=10)
def scatter(scatter_batch: Any) -> dict[str, Any]:
    """Judge ``scatter_batch(batch, devices)``, which returns a list of parts, each on its GPU."""
    found = run(_all_batches, scatter_batch, timeout=SECONDS)
    for (rows, gpus, start), one in zip(BATCHES, found, strict=True):
        _judge_parts(rows, gpus, one)
        _judge_route(rows, gpus, start, one)
    return {"batches": len(BATCHES), "each row moves": "once, straight to its GPU"}


def _all_batches(scatter_batch: Any) -> list[Any]:
    return [probes.scatter(scatter_batch, *batch) for batch in BATCHES]


def _judge_parts(rows: int, gpus: tuple[int, ...], found: dict[str, Any]) -> None:
    case = _on(rows, len(gpus))
    if found["kind"] != "list":
        raise Wrong(f"scatter_batch returns a list of tensors, not {found['kind']}. See {case}.")
    parts = [part for _, part in found["parts"]]
    sizes = [len(part) for part in parts]
    got = [row for part in parts for row in part]
    whole = [[2.0 * row, 2.0 * row + 1] for row in range(rows)]
    if 0 in sizes:
        raise Wrong(f"a GPU that gets no rows gets no part either. See {case}", measured=sizes)
    if any(len(row) != 2 for row in got):
        raise Wrong(f"split the rows (dimension 0), not the columns. See {case}")
    if missing := [row for row, values in enumerate(whole) if values not in got]:
        raise Wrong(f"rows are lost: {missing} of {case}, which do not divide evenly", measured=sizes)
    if len(got) > rows:
        raise Wrong(f"rows are on more than one GPU. See {case}", measured=sizes, expected=f"{rows} rows in all")
    if got != whole:
        raise Wrong(
            f"the rows are out of order: neighbours stay together, the first rows go to the first GPU. See {case}",
            measured=[[int(row[0]) // 2 for row in part] for part in parts],
        )
    if len(parts) > len(gpus):
        raise Wrong(f"there are more parts than GPUs: {case}", measured=sizes)
    most = math.ceil(rows / len(gpus))
    if max(sizes) > most:
        raise Wrong(
            f"the rows are not shared out evenly: the fullest GPU sets the pace. See {case}",
            measured=sizes,
            expected=f"at most {most} on each",
        )
    places = [place for place, _ in found["parts"]]
    if places != (right := [f"GPU {gpu}" for gpu in gpus[: len(parts)]]):
        where = "still on the host" if set(places) == {"host"} else "on the wrong GPU"
        raise Wrong(f"a part is {where}: part i belongs on devices[i]. See {case}", measured=places, expected=right)


def _judge_route(rows: int, gpus: tuple[int, ...], start: str, found: dict[str, Any]) -> None:
    source = "host" if start == "host" else f"GPU {gpus[0]}"
    case, moved = f"{_on(rows, len(gpus))}, with a batch that starts on the {start}", found["moved"]
    right = {f"{source} → {place}": ROW_BYTES * len(part) for place, part in found["parts"] if place != source}
    if moved == right:
        return
    if start != "host":
        _not_through_the_host(moved, "rows go")
    detours = [link for link in moved if not link.startswith(source)]
    if detours:
        raise Wrong(f"rows move twice, {detours[0]} too: send each part straight from where it is. See {case}")
    raise Wrong(
        f"more than its own rows go to a GPU: split first, then move. See {case}",
        measured=f"{_total(moved.items()):,} bytes",
        expected=f"{_total(right.items()):,} bytes",
    )


# --- 2: replicate ----------------------------------------------------------------------------------------------

GPUS = (2, 3, 4)


@exercise(title="Replicate the model", difficulty=2, minutes=15)
def replicate(replicate_model: Any) -> dict[str, Any]:
    """Judge ``replicate_model(model, devices)``, which returns for each GPU a dict of names and tensors."""
    for gpus, found in zip(
        GPUS, run_cases(probes.replicate, [(replicate_model, gpus) for gpus in GPUS], timeout=SECONDS), strict=True
    ):
        _judge_replicas(gpus, found)
        _judge_copies(gpus, found)
        _judge_use(gpus, found["use"])
    return {"GPUs": "2, 3, 4", "bytes moved on 4 GPUs": _total(found["moved"].items()), "gradients": "reach the model"}


def _judge_replicas(gpus: int, found: dict[str, Any]) -> None:
    """What was returned, name by name."""
    if found["home"] != ["GPU 0"]:
        raise Wrong(probes.MOVED, measured=found["home"], expected=["GPU 0"])
    if found["kind"] != "dicts":
        raise Wrong(
            "replicate_model returns a list with one dict for each GPU, from names to tensors", measured=found["kind"]
        )
    replicas, is_parameter = found["tensors"], found["names"]
    if len(replicas) != gpus:
        raise Wrong("replicate_model returns one dict for each GPU", measured=len(replicas), expected=gpus)
    missing = [name for name in is_parameter for replica in replicas if name not in replica]
    if parameters := [name for name in missing if is_parameter[name]]:
        raise Wrong(f"the parameter {parameters[0]} is missing: layers may hold layers. named_parameters() finds all.")
    for gpu, replica in enumerate(replicas):
        for name in is_parameter:
            if is_parameter[name]:
                _judge_gradients(gpu, name, replica[name])
    if missing:
        saved = "num_batches" in missing[0] or "running" in missing[0]
        why = "a replica has buffers too" if saved else "state_dict leaves out buffers that need not be saved"
        raise Wrong(f"the buffer {missing[0]} is missing: {why}. named_buffers() finds all.")


def _judge_gradients(gpu: int, name: str, facts: dict[str, Any]) -> None:
    if not facts["gradients"]:
        raise Wrong(
            f"the tensor {name} of GPU {gpu} knows nothing of the model's parameter: no gradient can come back. "
            "Copy the parameter itself, with autograd watching."
        )
    if gpu and facts["leaf"]:
        raise Wrong(
            f"the tensor {name} of GPU {gpu} is a new parameter: gradients end there and never reach the model. "
            "Keep what .to(device) returns."
        )


def _judge_copies(gpus: int, found: dict[str, Any]) -> None:
    """Where the tensors are, what they share, and what it cost to get them there."""
    for gpu, replica in enumerate(found["tensors"]):
        for name, facts in replica.items():
            kind = "parameter" if found["names"].get(name, True) else "buffer"
            if facts["place"] != f"GPU {gpu}":
                shared = ": the replicas share it with the model" if facts["the model's own"] else ""
                raise Wrong(
                    f"the {kind} {name} of replica {gpu} is in the wrong place{shared}",
                    measured=facts["place"],
                    expected=f"GPU {gpu}",
                )
            if not facts["same numbers"]:
                raise Wrong(f"the {kind} {name} of replica {gpu} has other numbers than the model's.")
            if gpu == 0 and not facts["the model's own"]:
                why = "a copy's statistics are lost" if kind == "buffer" else "a second copy only takes memory"
                raise Wrong(f"GPU 0 has the model already, so its {kind} {name} should be the model's own: {why}.")
    moved, each = found["moved"], found["parameters"] + found["buffers"]
    _not_through_the_host(moved, "tensors go")
    expect(
        f"With {gpus} GPUs other bytes move; a GPU gets each tensor once, one that two layers share too",
        _total(moved.items()),
        (gpus - 1) * each,
        unit="bytes",
    )


def _judge_use(gpus: int, use: Any) -> None:
    if isinstance(use, str):
        raise Wrong(f"functional_call(model, replica, …) with your dicts ended with {use}.")
    if use["gradients missing"] or use["gradients"]:
        raise Wrong(f"with {gpus} replicas the model's gradients are not the sum of those of the replicas.")
    expect(
        "The batches that the model's statistics have seen after each replica's turn, GPU 0 last",
        use["batches counted by the model"],
        {gpu: int(gpu == 0) for gpu in reversed(range(gpus))},
    )
    if use["statistics"]:
        raise Wrong(
            f"after all replicas ran, the model's running mean is {use['statistics']}: only GPU 0 may change it."
        )


# --- 3: forward ------------------------------------------------------------------------------------------------

STEPS = ((2, 8), (4, 8), (4, 10), (3, 7), (4, 2), (2, 1))  # GPUs, rows


@exercise(title="Run the replicas, gather the outputs", difficulty=2, minutes=15, timeout=45)
def forward(data_parallel_forward: Any) -> dict[str, Any]:
    """Judge ``data_parallel_forward(model, batch, devices)``, which returns the output on the first GPU."""
    per_step = {}
    for (gpus, rows), found in zip(STEPS, run(_all_steps, data_parallel_forward, timeout=SECONDS), strict=True):
        for number, step in enumerate(found["steps"]):
            _judge_output(gpus, rows, number, step)
            _judge_step_gradients(gpus, rows, step)
        _judge_where(gpus, rows, found)
        if rows >= gpus:  # else it is a matter of taste whether GPUs without rows get a replica
            per_step[gpus, rows] = _judge_bytes(gpus, rows, found)
    seen, spans = run(_more_of_forward, data_parallel_forward, timeout=SECONDS)
    for gpus, batches in zip(GPUS, seen, strict=True):
        if batches != 1:
            raise Wrong(
                "the model's statistics see one batch in a step, that of GPU 0: give the first replica the model's own "
                f"buffers, and the others copies. See {gpus} GPUs",
                measured=f"{batches} batches",
                expected="1 batch",
            )
    _judge_together(spans)
    return {"batches": len(STEPS), "bytes per step for 8 rows on 4 GPUs": per_step[4, 8], "GPUs at work together": 4}


def _all_steps(data_parallel_forward: Any) -> list[Any]:
    return [probes.forward(data_parallel_forward, *step) for step in STEPS]


def _more_of_forward(data_parallel_forward: Any) -> tuple[list[int], dict[int, tuple[float, float]]]:
    seen = [probes.batches_seen(data_parallel_forward, gpus) for gpus in GPUS]
    return seen, probes.together(data_parallel_forward, 4)


def _judge_output(gpus: int, rows: int, number: int, step: dict[str, Any]) -> None:
    case = _on(rows, gpus)
    if step["home"] != ["GPU 0"]:
        raise Wrong(probes.MOVED, measured=step["home"], expected=["GPU 0"])
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


def _judge_step_gradients(gpus: int, rows: int, step: dict[str, Any]) -> None:
    mine, right, first = (step[key] for key in ("gradients", "right gradients", "gradients of GPU 0 alone"))
    case = _on(rows, gpus)
    if any(gradient is None for gradient in mine):
        raise Wrong(
            f"no gradient comes back to the model's own parameters: have the replicas lost the graph? See {case}."
        )
    if how_far(mine, right, **CLOSE) is None:
        return
    if how_far(mine, first, **CLOSE) is None:
        raise Wrong(f"only the gradients of GPU 0's rows come back: the other replicas are cut off. See {case}.")
    raise Wrong(f"the gradients of {case} are not those of one GPU: {how_far(mine, right, **CLOSE)}.")


def _judge_where(gpus: int, rows: int, found: dict[str, Any]) -> None:
    wanted = min(gpus, rows)
    for phase in ("forward", "backward"):
        if len(found[f"{phase} on"]) < wanted:
            raise Wrong(
                f"not every GPU works in the {phase} of {_on(rows, gpus)}",
                measured=f"GPU {', '.join(map(str, found[f'{phase} on']))}",
                expected=f"{wanted} GPUs",
            )


def _judge_bytes(gpus: int, rows: int, found: dict[str, Any]) -> int:
    """Forward: parameters out, rows out, outputs back. Backward: gradients of outputs out, gradients back."""
    away = rows - math.ceil(rows / gpus)
    parameters, inputs, outputs = (gpus - 1) * found["bytes"], 4 * probes.WIDTH, 4 * probes.CLASSES
    ahead, back = found["moved"]["forward"], found["moved"]["backward"]
    case = _on(rows, gpus)
    _not_through_the_host(ahead, "outputs go")
    right = parameters + away * (inputs + outputs)
    mistakes = {
        parameters + (gpus - 1) * rows * inputs + away * outputs: "the whole batch goes to every GPU: scatter it",
        gpus * parameters
        + away * (inputs + outputs): "the model is replicated once for each GPU: replicate once a step",
        parameters + away * inputs + (gpus - 1) * rows * outputs: "every GPU gets the outputs: gather on GPU 0 only",
    }
    if (total := _total(ahead.items())) in mistakes and total != right:
        raise Wrong(f"{mistakes[total]}. See {case}", measured=f"{total:,} bytes", expected=f"{right:,} bytes")
    expect(
        f"The forward of {case} moves other bytes than parameters, rows and outputs, each once",
        total,
        right,
        unit="bytes",
    )
    expect(
        f"The backward of {case} moves other bytes than gradients of outputs and of parameters, each once",
        _total(back.items()),
        parameters + away * outputs,
        unit="bytes",
    )
    return total + _total(back.items())


def _judge_together(spans: dict[int, tuple[float, float]]) -> None:
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


# --- 4: the loss in the replicas -------------------------------------------------------------------------------

LOSSES = ((2, 8), (3, 7), (4, 10), (4, 2), (2, 41))  # GPUs, rows
MOST_GATHERED = 16  # bytes from each GPU: a sum and a count, or a loss, with room to spare
MOST_ON_GPU_0 = 1_500_000_000


@exercise(title="Keep the loss in the replicas", difficulty=3, minutes=20, timeout=45)
def loss(data_parallel_loss: Any) -> dict[str, Any]:
    """Judge ``data_parallel_loss(model, batch, targets, devices)``: the mean cross-entropy, on the first GPU."""
    most = 0
    for (gpus, rows), found in zip(LOSSES, run(_all_losses, data_parallel_loss, timeout=SECONDS), strict=True):
        _judge_loss(gpus, rows, found)
        most = max(most, _judge_gathered(gpus, rows, found))
        _judge_loss_gradients(gpus, rows, found)
    peak = run(probes.peak_of_gpu_0, data_parallel_loss, 4, timeout=SECONDS)
    if peak > MOST_ON_GPU_0:
        raise Wrong(
            "GPU 0 holds too much at its peak: with 50,000 classes, anything that has a number for each row and class "
            "must stay split over the GPUs",
            measured=f"{peak / 1e9:.2f} GB",
            expected=f"below {MOST_ON_GPU_0 / 1e9:.1f} GB",
        )
    return {"batches": len(LOSSES), "gathered from each GPU": f"{most} bytes", "peak of GPU 0": f"{peak / 1e9:.2f} GB"}


def _all_losses(data_parallel_loss: Any) -> list[Any]:
    return [probes.loss(data_parallel_loss, *case) for case in LOSSES]


def _shares(rows: int, gpus: int) -> list[list[int]]:
    """The two usual ways to share out rows: full shares first, or as evenly as possible."""
    most = math.ceil(rows / gpus)
    full = [min(most, rows - start) for start in range(0, rows, most)]
    even = [rows // gpus + (gpu < rows % gpus) for gpu in range(min(gpus, rows))]
    return [full, even]


def _judge_loss(gpus: int, rows: int, found: dict[str, Any]) -> None:
    case, alone = _on(rows, gpus), found["rows alone"]
    if found["already"]:
        raise Wrong("the model has gradients before anyone called backward: leave backward to the caller.")
    if found["kind"] != "tensor":
        raise Wrong(
            f"data_parallel_loss returns a {found['kind']}: a number without a graph, so no gradient can go back. "
            "Keep tensors."
        )
    if found["shape"]:
        raise Wrong("return one number, not one for each GPU or row", measured=found["shape"], expected=[])
    if found["place"] != "GPU 0":
        raise Wrong("the loss is in the wrong place", measured=found["place"], expected="GPU 0")
    value, right = found["loss"], found["right"]
    if how_far(value, right, **CLOSE) is None:
        if not found["graph"]:
            raise Wrong("the loss knows nothing of the replicas, so no gradient can go back: no detach, no item.")
        return
    for sizes in _shares(rows, gpus):
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        means = [sum(alone[start : start + size]) / size for start, size in zip(starts, sizes, strict=True)]
        mistakes = {
            "every row counts the same, so a GPU with fewer rows counts less: "
            "weight each loss with its number of rows": sum(means) / len(means),
            "this is the sum of the GPUs' means: divide": sum(means),
            "this is the sum over all rows: divide by their number": sum(alone),
            "this is the loss of GPU 0's rows alone": means[0],
            "this is the mean divided by the number of GPUs once more": right / len(means),
        }
        for sentence, wrong in mistakes.items():
            if how_far(value, wrong, **CLOSE) is None:
                raise Wrong(f"{sentence}. See {case}", measured=value, expected=right)
    raise Wrong(
        f"the loss of {case} is not that of one GPU: does each row meet its own target?", measured=value, expected=right
    )


def _judge_gathered(gpus: int, rows: int, found: dict[str, Any]) -> int:
    """The most bytes that one GPU sends to GPU 0 in the forward."""
    case, moved, wanted = _on(rows, gpus), found["moved"], min(gpus, rows)
    _not_through_the_host(moved, "losses go")
    if len(found["forward on"]) < wanted:
        raise Wrong(f"not every GPU works in the forward of {case}", measured=len(found["forward on"]), expected=wanted)
    sent = max(moved.get(f"GPU {gpu} → GPU 0", 0) for gpu in range(1, gpus))
    if sent <= MOST_GATHERED:
        return sent
    share = min(min(sizes[1:]) for sizes in _shares(rows, gpus))
    numbers = {"measured": f"{sent} bytes from a GPU", "expected": "4 bytes, one loss"}
    if sent >= 4 * probes.CLASSES * share:
        raise Wrong(
            f"a number for each row and class goes to GPU 0: compute the loss where the logits are. See {case}",
            **numbers,
        )
    raise Wrong(f"a number for each row goes to GPU 0: one for each GPU is enough. See {case}", **numbers)


def _judge_loss_gradients(gpus: int, rows: int, found: dict[str, Any]) -> None:
    case = _on(rows, gpus)
    if any(gradient is None for gradient in found["gradients"]):
        raise Wrong(f"no gradient comes back to the model's own parameters. See {case}.")
    if distance := how_far(found["gradients"], found["right gradients"], **CLOSE):
        raise Wrong(f"the loss of {case} is right, its gradients are not: {distance}. Is a replica cut off?")
