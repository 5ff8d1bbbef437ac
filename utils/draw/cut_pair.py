"""Two matrices on two ranks: the first cut by columns, the second by rows, between f and g."""

from __future__ import annotations

from utils.draw import palette
from utils.draw.picture import Picture
from utils.draw.svg import Canvas

WIDTH, HEIGHT = 900, 400
LANES = (96, 234)  # the top of each rank's lane
TALL = 104
SIZE, LONG = 44, 104  # of a side of a matrix: the model's width, and the wider one inside
FILLS = (palette.DEVICE, palette.PROCESS)
TITLE = "Columns, then rows: each rank's way through the pair"
ALT = (
    "Two ranks compute gelu(x · A) · B. Both start with all of x, which f hands to them. Rank 0 has the left columns "
    "of A and the upper rows of B, rank 1 the right columns and the lower rows. Each gets its columns of the hidden "
    "values, sends nothing, and ends with a summand of full size. g adds the summands up. Forward, f copies and g "
    "all-reduces; backward, f all-reduces and g copies."
)


def cut_pair() -> Picture:
    """What each of two ranks has of x, A, the hidden values, B and the result; f and g around them."""
    canvas = Canvas(WIDTH, HEIGHT, TITLE, ALT)
    columns = {"x": 168, "A": 252, "gelu(x · A)": 416, "B": 582, "summand": 690}
    for name, x in columns.items():
        wide = {"A": LONG, "gelu(x · A)": LONG}.get(name, SIZE)
        canvas.text(x + wide / 2, 76, name, size=14, bold=True)
    for rank, top in enumerate(LANES):
        _lane(canvas, rank, top, list(columns.values()))
    bottom = LANES[1] + TALL
    for x, name in ((96, "f"), (768, "g")):
        canvas.box(x, LANES[0], 38, bottom - LANES[0], name, fill=palette.NODE, size=20, bold=True)
    middle = (LANES[0] + bottom) / 2
    for x, name in ((24, "x"), (834, "y")):
        canvas.box(x, middle - SIZE / 2, SIZE, SIZE, name, fill=palette.PANEL, bold=True)
    canvas.line([(24 + SIZE, middle), (94, middle)], arrow="end")
    canvas.line([(808, middle), (832, middle)], arrow="end")
    for x, first, second in ((115, "copies", "all-reduces"), (787, "all-reduces", "copies")):
        canvas.text(x, bottom + 24, f"forward: {first}", size=13)
        canvas.text(x, bottom + 43, f"backward: {second}", size=13)
    canvas.text(466, bottom + 24, "nothing is sent in here: the parallel region", size=13, colour=palette.MUTED)
    return canvas.picture()


def _lane(canvas: Canvas, rank: int, top: float, places: list[float]) -> None:
    """One rank: what it has is filled, what other ranks have is dashed."""
    x, first, hidden, second, summand = places
    fill, middle = FILLS[rank], top + TALL / 2
    row = middle - SIZE / 2
    canvas.text(x - 6, top + 8, f"rank {rank}", size=13, anchor="start", bold=True, colour=palette.MUTED)
    canvas.box(x, row, SIZE, SIZE, "all", fill=fill, size=13)
    canvas.text((x + SIZE + first) / 2, middle + 5, "·", size=20, bold=True)
    for left in (first, hidden):
        for half in range(2):
            _part(canvas, left + half * LONG / 2, row, LONG / 2, SIZE, fill if half == rank else "")
    canvas.line([(first + LONG + 6, middle), (hidden - 6, middle)], arrow="end")
    canvas.text((hidden + LONG + second) / 2, middle + 5, "·", size=20, bold=True)
    for half in range(2):
        _part(canvas, second, top + half * TALL / 2, SIZE, TALL / 2, fill if half == rank else "")
    canvas.line([(second + SIZE + 6, middle), (summand - 6, middle)], arrow="end")
    canvas.box(summand, row, SIZE, SIZE, "+", fill=fill, size=18)


def _part(canvas: Canvas, x: float, y: float, width: float, height: float, fill: str) -> None:
    look = {"fill": fill} if fill else {"fill": palette.PANEL, "dash": "4 3"}
    canvas.box(x, y, width, height, "own" if fill else (), size=13, radius=2, **look)
