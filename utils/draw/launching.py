"""Who starts whom under torchrun, and what to ask first when a training run has failed."""

from __future__ import annotations

from collections.abc import Sequence

from utils.draw import palette
from utils.draw.picture import Picture
from utils.draw.svg import Canvas, wrap

_WHO = (
    "Two nodes under torchrun. On each node somebody starts one agent. First the agents meet in a store, which one of "
    "them hosts: that is the rendezvous, and there it is settled which node is number 0. Then each agent starts the "
    "workers of its own node and tells them who they are. Then the workers leave their addresses in the store, and "
    "connect to each other directly: gradients go from worker to worker, past agents and store."
)


def agents_and_workers() -> Picture:
    """Agents, workers and the store on two nodes, with what goes on between them in its order."""
    canvas = Canvas(930, 384, "Under torchrun: one agent on each node, one store, many workers", _WHO)
    store_left, store_width, agents, workers = 375, 180, 96, 256
    canvas.box(store_left, agents, store_width, 58, ("store", "on one of the nodes"), fill=palette.PANEL, dash="5 4")
    for node, left in enumerate((20, 590)):
        canvas.box(left, 56, 320, 286, fill=palette.NODE, radius=12)
        canvas.text(left + 16, 78, f"node {node}", anchor="start", bold=True)
        canvas.box(left + 16, agents, 288, 58, ("agent", "torchrun"), bold=True)
        for local in range(2):
            x = left + 16 + local * 148
            canvas.box(x, workers, 140, 62, (f"rank {2 * node + local}", f"local rank {local}"), fill=palette.PROCESS)
            canvas.line([(x + 70, agents + 58), (x + 70, workers)], arrow="end")
        for line, words in enumerate(("2 · starts workers,", "tells them", "who they are")):
            canvas.text(left + 160, 190 + 17 * line, words, size=13)
    inner = (20 + 304, store_left), (590 + 16, store_left + store_width)
    for start, end in inner:
        canvas.line([(start, agents + 29), (end, agents + 29)], palette.BLUE, arrow="both")
    canvas.text(465, 82, "1 · agents meet", size=13, colour=palette.BLUE)
    for corner, x in ((store_left + 40, 324), (store_left + store_width - 40, 606)):
        canvas.line([(x, workers + 14), (corner, agents + 58)], palette.PURPLE, dash="5 4", arrow="end")
    canvas.text(465, 206, "3 · workers leave", size=13)
    canvas.text(465, 223, "their addresses", size=13)
    canvas.line([(324, workers + 44), (606, workers + 44)], palette.GREEN, width=2.6, arrow="both")
    canvas.text(465, workers + 34, "4 · gradients", size=13)
    note = "Workers find their store at MASTER_ADDR:MASTER_PORT, agents theirs by --rdzv-endpoint; often it is one."
    canvas.text(465, 366, note, size=12, colour=palette.MUTED)
    return canvas.picture()


def decisions(title: str, steps: Sequence[tuple[str, str]], otherwise: str) -> Picture:
    """Questions to ask one after the other: to the right what to do if the answer is yes, below what to ask if no.

    Args:
        title: the heading.
        steps: (question, what to do if yes), the first one first.
        otherwise: what to do if no answer was yes.
    """
    left, width, answer, high, step = 20, 370, 470, 58, 78
    told = " ".join(f"{question} If yes: {todo}" for question, todo in steps)
    canvas = Canvas(930, 66 + step * len(steps) + 50, title, f"{title} {told} If none of these: {otherwise}")
    for number, (question, todo) in enumerate(steps):
        top = 54 + number * step
        canvas.box(left, top, width, high, wrap(question, width - 16, 14, bold=True), palette.PROCESS, bold=True)
        canvas.line([(left + width, top + high / 2), (answer, top + high / 2)], palette.GREEN, arrow="end")
        canvas.text((left + width + answer) / 2, top + high / 2 - 6, "yes", size=13, colour=palette.GREEN, bold=True)
        canvas.box(answer, top, 440, high, wrap(todo, 424, 13), size=13)
        canvas.line([(left + 60, top + high), (left + 60, top + step)], palette.MUTED, arrow="end")
        canvas.text(left + 82, top + high + 15, "no", size=13, colour=palette.MUTED)
    top = 54 + len(steps) * step
    canvas.box(left, top, 890, 40, wrap(otherwise, 870, 13), size=13)
    return canvas.picture()
