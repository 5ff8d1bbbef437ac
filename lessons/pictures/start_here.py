"""Pictures of the first lecture: the machine that the notebook runs on, and one step of data parallelism."""

from __future__ import annotations

from collections.abc import Sequence

from utils.draw import palette
from utils.draw.frame import EDGE, Frame
from utils.draw.picture import Picture
from utils.draw.svg import Canvas, shorten
from utils.hardware.machine import Machine, describe_interconnect, describe_network, look

WIDTH, MOST_SQUARES, MOST_GPUS = 760, 64, 8


def machine(info: Machine | None = None) -> Picture:
    """Processors, memory, GPUs, what connects them, and networks of ``info`` (default: this machine)."""
    info = info or look()
    alt = "This machine. " + " ".join(f"{what}: {value}." for what, value in info.rows())
    gpu_rows = -(-min(len(info.gpus), MOST_GPUS) // 4)
    gpu_height = 56 + max(1, gpu_rows) * 70 + (30 if len(info.gpus) > 1 else 0)
    canvas = Canvas(WIDTH, 226 + gpu_height + 92, "What is in this machine", alt)
    _processors(canvas, info)
    _memory(canvas, info)
    canvas.line([(WIDTH / 2, 190), (WIDTH / 2, 222)], palette.LINE, 3)
    _gpus(canvas, info, 222, gpu_height)
    y = 222 + gpu_height
    canvas.line([(WIDTH / 2, y), (WIDTH / 2, y + 22)], palette.VERMILION, 3)
    networks = ", ".join(map(describe_network, info.networks)) or "no network but loopback"
    canvas.box(20, y + 22, WIDTH - 40, 28, shorten(f"network: {networks}", WIDTH - 50, 13), fill="#FBE5D6",
               stroke=palette.VERMILION, size=13)  # fmt: skip
    versions = f"{info.system} · Python {info.python} · torch {info.torch}"
    canvas.text(WIDTH / 2, y + 76, shorten(versions, WIDTH - 30, 12), size=12, colour=palette.MUTED)
    return canvas.picture()


def _processors(canvas: Canvas, info: Machine) -> None:
    width = 440
    canvas.box(20, 46, width, 144, fill=palette.NODE, radius=10)
    canvas.text(34, 70, "processors", size=15, anchor="start", bold=True)
    canvas.text(34, 90, shorten(info.cpu, width - 24, 13), size=13, anchor="start")
    usable = info.usable_cpus or 0
    shown = min(usable, MOST_SQUARES)
    side = 26 if shown <= 12 else 20 if shown <= 32 else 18
    per_row = 14 if shown <= 12 else 16 if shown <= 32 else 22
    for i in range(shown):
        row, column = divmod(i, per_row)
        canvas.box(34 + column * (side if side < 20 else side + 4), 102 + row * (side + 2), side - 2, side - 2,
                   role=palette.COMPUTE, radius=3)  # fmt: skip
    logical = "unknown" if info.logical_cpus is None else info.logical_cpus
    words = f"{usable or 'unknown'} of {logical} logical processors usable here"
    if usable > shown:
        words += f" ({shown} drawn)"
    canvas.text(34, 180, words, size=13, anchor="start")


def _memory(canvas: Canvas, info: Machine) -> None:
    x, width = 476, WIDTH - 496
    canvas.box(x, 46, width, 144, fill=palette.NODE, radius=10)
    canvas.text(x + 14, 70, "memory", size=15, anchor="start", bold=True)
    total, free = info.memory_bytes, info.memory_available_bytes
    if not total or free is None:
        canvas.text(x + 14, 110, "unknown", size=13, anchor="start")
        return
    used = min(1.0, max(0.0, 1 - free / total))
    inner = width - 28
    canvas.box(x + 14, 100, inner, 34, fill=palette.PANEL)
    canvas.box(x + 14, 100, max(3.0, inner * used), 34, role=palette.MEMORY)
    canvas.text(x + 14, 90, f"{total / 2**30:.1f} GiB", size=13, anchor="start")
    canvas.text(x + 14, 158, f"in use: {used:.0%}", size=13, anchor="start")
    canvas.text(x + 14, 178, f"available: {free / 2**30:.1f} GiB", size=13, anchor="start")


def _gpus(canvas: Canvas, info: Machine, top: float, height: float) -> None:
    canvas.box(20, top, WIDTH - 40, height, fill=palette.NODE, radius=10)
    title = f"{len(info.gpus)} GPU{'' if len(info.gpus) == 1 else 's'}"
    if len(info.gpus) > MOST_GPUS:
        title += f" ({MOST_GPUS} drawn)"
    canvas.text(34, top + 24, title, size=15, anchor="start", bold=True)
    if not info.gpus:
        canvas.box(34, top + 38, WIDTH - 68, 70,
                   ["no NVIDIA GPU found: the course runs on the processors,", "each rank as a process (backend gloo)"],
                   fill=palette.PANEL, dash="5 4", size=14)  # fmt: skip
        return
    if info.visible is not None:
        text = shorten(f"CUDA_VISIBLE_DEVICES={info.visible}", 400, 12)
        canvas.text(WIDTH - 34, top + 24, text, size=12, anchor="end", colour=palette.MUTED)
    drawn = info.gpus[:MOST_GPUS]
    per_row = min(4, len(drawn))
    width = (WIDTH - 68 - (per_row - 1) * 10) / per_row
    for i, gpu in enumerate(drawn):
        row, column = divmod(i, 4)
        memory = "memory unknown" if gpu.memory_bytes is None else f"{gpu.memory_bytes / 2**30:.1f} GiB"
        lines = [f"GPU {gpu.index}", shorten(gpu.name.removeprefix("NVIDIA "), width - 6, 12), memory]
        canvas.box(34 + column * (width + 10), top + 36 + row * 70, width, 62, lines, size=12)
    if len(info.gpus) > 1:
        text = shorten(f"between them: {describe_interconnect(info.interconnect)}", WIDTH - 80, 13)
        canvas.box(34, top + height - 42, WIDTH - 68, 28, text, fill="#D8F0E8", stroke=palette.GREEN, size=13)


# --- One step, seen at one number of the model: the same start, other gradients, their mean ---

STEPS = ("the same start", "its own gradient", "the mean, for all", "the same w again")
NAMES, GAP, ROW, BOX = 170.0, 14.0, 62.0, 38.0  # pixels


def averaging(seen: Sequence[tuple[float, float, float]], step: int = 4, rate: float = 0.1) -> Picture:
    """A column for each rank, and what it holds after each of four steps.

    Args:
        seen: for each rank the parameter, the gradient of its own images, and the gradient after the all-reduce.
        step: how many of the four steps are drawn.
        rate: the learning rate of the last step.
    """
    ranks = range(len(seen))
    wide = (760 - 2 * EDGE - NAMES - GAP * (len(seen) - 1)) / len(seen)
    rows = [
        [f"w = {parameter:.4f}" for parameter, _, _ in seen],
        [f"{own:+.4f}" for _, own, _ in seen],
        [f"{mean:+.4f}" for _, _, mean in seen],
        [f"w = {parameter - rate * mean:.4f}" for parameter, _, mean in seen],
    ]
    rows = [[text.replace("-", "−") for text in row] for row in rows]
    caption = f"w: one of the model's parameters. Last step: w minus {rate:g} times the mean"
    frame = Frame(760, f"Step {step} of 4: {STEPS[step - 1]}", caption)
    told = ("; ".join(f"rank {rank}: {row[rank]}" for rank in ranks) for row in rows[:step])
    alt = " ".join(f"{name[0].upper()}{name[1:]}: {row}." for name, row in zip(STEPS, told, strict=False))
    canvas = frame.canvas(30 + 4 * ROW, alt, "One step of data parallelism")
    for rank in ranks:
        x = EDGE + NAMES + rank * (wide + GAP)
        middle = x + wide / 2
        canvas.text(middle, frame.top + 14, f"rank {rank}", size=15, bold=True)
        for number, row in enumerate(rows[:step]):
            y = frame.top + 28 + number * ROW
            if number:
                colour = palette.GREEN if number == 2 else palette.LINE
                canvas.line([(middle, y - ROW + BOX), (middle, y)], colour, 2.5, arrow="end")
            fill = palette.PROCESS if number in (0, 3) else palette.DEVICE
            if number != 2:
                canvas.box(x, y, wide, BOX, row[rank], fill, size=15, mono=True)
    for number, name in enumerate(STEPS[:step]):
        y = frame.top + 28 + number * ROW
        canvas.text(EDGE + NAMES - 12, y + BOX / 2 + 5, name, size=14, anchor="end", bold=number == step - 1)
        if number == 2:
            all_ranks = len(seen) * (wide + GAP) - GAP
            means = ", ".join(dict.fromkeys(rows[2]))  # one, if all have the same
            label = f"all-reduce, divided by {len(seen)}: {means}"
            canvas.box(EDGE + NAMES, y, all_ranks, BOX, label, "#D8F0E8", size=15, stroke=palette.GREEN)
    return canvas.picture()
