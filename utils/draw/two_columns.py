"""AlexNet's two columns: which layers read from their own column, and which from both."""

from __future__ import annotations

from collections.abc import Mapping

from utils.draw import palette
from utils.draw.frame import EDGE, Frame
from utils.draw.picture import Picture

LAYERS = ("conv1", "conv2", "conv3", "conv4", "conv5", "fc6", "fc7", "fc8")
NAMES, BOX, HIGH, APART = 56.0, 64.0, 40.0, 104.0  # pixels


def two_columns(crossings: Mapping[str, int], title: str, caption: str = "", width: int = 900) -> Picture:
    """A row for each GPU, layers from left to right; where a layer reads from both columns, halves cross.

    Args:
        crossings: the layers that read from both columns, and how many bytes go each way in front of them.
        title, caption: above and below.
        width: pixels.
    """
    step = (width - 2 * EDGE - NAMES - BOX) / (len(LAYERS) - 1)
    sent = ", ".join(f"{layer} ({nbytes / 1e6:.1f} MB each way)" for layer, nbytes in crossings.items())
    alt = f"{title}. Half of each of the layers {', '.join(LAYERS)} is on GPU 0, half on GPU 1. Each GPU sends "
    frame = Frame(width, title, caption)
    canvas = frame.canvas(
        26 + APART + HIGH,
        f"{alt}its half to the other in front of {sent}; all others read from their own column.",
        "Columns",
    )
    top = frame.top + 22
    for place, layer in enumerate(LAYERS):
        x = EDGE + NAMES + place * step
        for gpu in (0, 1):
            y = top + gpu * APART
            if place:
                canvas.line([(x - step + BOX, y + HIGH / 2), (x - 1, y + HIGH / 2)], palette.LINE, 2, arrow="end")
            if layer in crossings:
                other = top + (1 - gpu) * APART
                ends = (x - step + BOX, other + HIGH / 2), (x - 2, y + HIGH / 2 + (8 if gpu == 0 else -8))
                canvas.line(ends, palette.GREEN, 3, arrow="end")
            canvas.box(x, y, BOX, HIGH, f"½ {layer}", palette.DEVICE, size=12)
        if layer in crossings:
            canvas.text(x - (step - BOX) / 2, top - 8, f"{crossings[layer] / 1e6:.1f} MB", 13, bold=True)
    for gpu in (0, 1):
        canvas.text(EDGE, top + gpu * APART + HIGH / 2 + 5, f"GPU {gpu}", 14, anchor="start", bold=True)
    return canvas.picture()
