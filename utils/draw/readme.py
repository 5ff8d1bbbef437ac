"""The picture at the top of the README: a cell, its four ranks, and what comes back.

``python -m utils.draw.readme`` writes it to ``docs/ranks_in_a_cell.svg``.
"""

from __future__ import annotations

from pathlib import Path

from utils.draw import palette
from utils.draw.picture import Picture
from utils.draw.svg import Canvas

PATH = Path(__file__).parents[2] / "docs" / "ranks_in_a_cell.svg"
CODE = (
    "%%ranks -n 4",
    "x = torch.tensor([rank])",
    "dist.all_reduce(x)",
    "x",
)
OUTPUT = "ranks 0–3: tensor([6])"

_ALT = (
    "A notebook cell that begins with %%ranks -n 4 and runs on four rank processes, each on a GPU if there are "
    "enough of them, else on the processor. Each rank makes a tensor that holds its own number: 0, 1, 2, 3. An "
    "all-reduce adds them up, and every rank gets 6. Below the cell stands: ranks 0–3: tensor([6])."
)


def picture() -> Picture:
    """A cell on the left, four ranks that add up their tensors on the right, the output below the cell."""
    canvas = Canvas(940, 340, "One notebook cell, four ranks", _ALT)
    canvas.text(30, 74, "the cell", size=14, anchor="start", colour=palette.MUTED)
    canvas.box(28, 84, 340, 132, fill="#F7F7F7", radius=6)
    for number, line in enumerate(CODE):
        first = number == 0
        canvas.text(44, 112 + number * 28, line, size=17, anchor="start", mono=True, bold=first,
                    colour=palette.BLUE if first else palette.INK)  # fmt: skip
    canvas.text(30, 256, "what you see", size=14, anchor="start", colour=palette.MUTED)
    canvas.box(28, 266, 340, 46, fill=palette.PANEL)
    canvas.text(44, 295, OUTPUT, size=17, anchor="start", mono=True)

    left, width, gap = 450, 104, 14
    canvas.text(left, 74, "four processes, on GPUs if there are enough, else on the CPU", size=14, anchor="start",
                colour=palette.MUTED)  # fmt: skip
    canvas.line([(368, 150), (left - 6, 150)], palette.BLUE, 2.5, arrow="end")
    for rank in range(4):
        x = left + rank * (width + gap)
        canvas.box(x, 84, width, 84)
        canvas.text(x + width / 2, 108, f"rank {rank}", size=16, bold=True)
        canvas.box(x + 12, 120, width - 24, 36, f"x = [{rank}]", fill=palette.PROCESS, size=15, mono=True)
        canvas.line([(x + width / 2, 168), (x + width / 2, 200)], palette.GREEN, 3, arrow="end")
        canvas.line([(x + width / 2, 236), (x + width / 2, 268)], palette.GREEN, 3, arrow="end")
        canvas.box(x + 12, 268, width - 24, 36, "x = [6]", fill=palette.PROCESS, size=15, mono=True)
    canvas.box(left, 200, 4 * width + 3 * gap, 36, "all-reduce: 0 + 1 + 2 + 3 = 6", fill="#D8F0E8",
               stroke=palette.GREEN, size=16, bold=True)  # fmt: skip
    canvas.line([(left - 6, 289), (374, 289)], palette.BLUE, 2.5, arrow="end")
    return canvas.picture()


if __name__ == "__main__":
    PATH.parent.mkdir(exist_ok=True)
    picture().save(PATH)
    print(f"wrote {PATH.name}")
