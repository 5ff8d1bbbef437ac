"""The map of the course: its lectures in the stages in which they build on each other."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from utils.draw import palette
from utils.draw.picture import Picture
from utils.draw.svg import Canvas

Row = tuple[int, str, str]

COURSE: tuple[Row, ...] = (
    (0, "Start here", "your machine; the first cell on four ranks"),
    (1, "Single and multi-node", "node, rank, world size; link speeds"),
    (2, "Model parallelism", "layers on two GPUs; pipelines and bubbles"),
    (3, "Inside DataParallel", "scatter, replicate, gather; uneven memory"),
    (4, "GIL and reference counts", "threads against processes"),
    (5, "Parameter server, all-reduce", "staleness; ring, tree, hierarchy"),
    (6, "DDP and bucketing", "hooks, buckets, overlap; DDP from nothing"),
    (7, "Feeding the ranks", "samplers, workers, learning rates"),
    (8, "Checkpointing", "exact resume, shards, resharding"),
    (9, "torchrun", "rendezvous, restarts, hangs"),
    (10, "Other frameworks", "MPI, Horovod, tf.distribute"),
    (11, "Ray and tuning", "Ray Train, Ray Tune"),
)
"""Number, title and contents of every lecture."""

STAGES: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("Find your way", (0, 1)),
    ("Split the work", (2, 3, 4)),
    ("Add up gradients", (5, 6)),
    ("Train for real", (7, 8, 9)),
    ("Other tools", (10, 11)),
)
"""The stages from left to right, and the lectures in each."""

CARD_WIDTH, CARD_HEIGHT, COLUMN, TOP = 172, 110, 196, 84


def course_map(rows: Sequence[Row] = COURSE, ready: Collection[int] | None = None) -> Picture:
    """The lectures as cards in five stages.

    Args:
        rows: (number, title, contents) of each lecture; numbers as in ``STAGES``.
        ready: numbers of the lectures that exist; the others are drawn dashed. None: all exist.
    """
    lectures = {number: (title, contents) for number, title, contents in rows}
    ready = set(lectures) if ready is None else set(ready)
    stages = [(name, [n for n in numbers if n in lectures]) for name, numbers in STAGES]
    stages = [(name, numbers) for name, numbers in stages if numbers]
    tallest = max(len(numbers) for _, numbers in stages)
    alt = "The map of the course. " + " ".join(
        f"{name}: " + "; ".join(f"{n:02d} {lectures[n][0]}{'' if n in ready else ' (to come)'}" for n in numbers) + "."
        for name, numbers in stages
    )
    height = TOP + tallest * (CARD_HEIGHT + 10) + (34 if ready < set(lectures) else 12)
    canvas = Canvas(len(stages) * COLUMN + 6, height, "The map of the course", alt)
    for column, (name, numbers) in enumerate(stages):
        x = 15 + column * COLUMN
        if column + 1 < len(stages):
            canvas.line([(x + CARD_WIDTH - 2, 62), (x + COLUMN + 2, 62)], palette.BLUE, 2.5, arrow="end")
        canvas.box(x, 46, CARD_WIDTH, 30, name, fill="#D6E9F5", stroke=palette.BLUE, size=14, bold=True)
        for row, number in enumerate(numbers):
            title, contents = lectures[number]
            y = TOP + row * (CARD_HEIGHT + 10) + 2
            done = number in ready
            canvas.box(x, y, CARD_WIDTH, CARD_HEIGHT, fill=palette.PROCESS if done else palette.PANEL,
                       dash=None if done else "5 4")  # fmt: skip
            canvas.text(x + 10, y + 24, f"{number:02d}", size=17, anchor="start", bold=True, colour=palette.BLUE)
            under = canvas.paragraph(x + 38, y + 22, title, CARD_WIDTH - 44, size=14, bold=True)
            canvas.paragraph(x + 10, max(under + 2, y + 50), contents, CARD_WIDTH - 14, size=12.5,
                             colour=palette.MUTED)  # fmt: skip
    if ready < set(lectures):
        canvas.text(canvas.width / 2, height - 14, "dashed: to come", size=13, colour=palette.MUTED)
    return canvas.picture()
