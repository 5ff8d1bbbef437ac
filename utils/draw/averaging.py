"""One step of data parallelism, seen at one number of the model: the same start, other gradients, their mean."""

from __future__ import annotations

from collections.abc import Sequence

from utils.draw import palette
from utils.draw.frame import EDGE, Frame
from utils.draw.picture import Picture

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
