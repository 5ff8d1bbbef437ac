"""The picture that explains Ray's words: driver, task, worker process, actor, node."""

from __future__ import annotations

from utils.draw import palette
from utils.draw.picture import Picture
from utils.draw.svg import Canvas

_ALT = (
    "The parts of a Ray. The driver is the program that called ray.init: this notebook. On each node runs one daemon, "
    "the raylet, which knows how many cores and GPUs are free there and starts worker processes. A task is one call of "
    "a function, in any free worker process; the process forgets it afterwards. An actor is an object that lives in a "
    "worker process of its own, with all that it remembers, until nobody needs it. On the first node there is also the "
    "list of nodes and actors, which all ask. The driver sends calls to the workers and gets references at once; "
    "ray.get waits for the values."
)


def ray_parts() -> Picture:
    """A driver and two nodes with their daemons, workers and an actor."""
    canvas = Canvas(960, 352, "Ray: a driver, and on each node a daemon with its worker processes", _ALT)
    canvas.box(24, 112, 190, 132, fill=palette.PROCESS)
    canvas.text(119, 140, "driver", size=17, bold=True)
    canvas.text(119, 166, "this notebook", size=14)
    canvas.text(119, 194, "f.remote(x)", size=13, mono=True)
    canvas.text(119, 216, "ray.get(…)", size=13, mono=True)

    for node, left in enumerate((330, 646)):
        canvas.box(left, 50, 290, 262, fill=palette.NODE, radius=12)
        canvas.text(left + 145, 76, f"node {node}" + (" (the head)" if not node else ""), size=16, bold=True)
        canvas.box(
            left + 14, 90, 262, 52, ["daemon (raylet): counts free cores", "and GPUs, starts processes"], size=12.5
        )
        if node == 0:
            canvas.box(left + 14, 150, 262, 28, "list of all nodes and actors", size=12.5)
        top = 190
        words = (
            ("worker process", "runs a task,", "then the next"),
            ("worker process", "is an actor: it", "remembers"),
        )
        for column, lines in enumerate(words):
            x = left + 14 + 136 * column
            canvas.box(x, top, 126, 108, fill=palette.PROCESS, stroke_width=2.4 if column else 1.2)
            canvas.text(x + 63, top + 28, lines[0], size=13, bold=True)
            canvas.text(x + 63, top + 58, lines[1], size=13)
            canvas.text(x + 63, top + 78, lines[2], size=13)
    canvas.line([(214, 160), (342, 116)], palette.BLUE, arrow="end")
    canvas.text(272, 118, "asks for", size=12)
    canvas.text(262, 134, "a worker", size=12)
    canvas.line([(214, 218), (342, 240)], palette.BLUE, width=2.4, arrow="both")
    canvas.text(270, 262, "calls, values", size=12)
    canvas.paragraph(
        24, 336, "Tune's trials and Ray Train's workers are actors; both are programs on top of this.", 900
    )
    return canvas.picture()
