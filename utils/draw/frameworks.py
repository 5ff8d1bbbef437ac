"""Who runs where in each framework for data parallelism, and which way the gradients go: one picture."""

from __future__ import annotations

from utils.draw import palette
from utils.draw.picture import Picture
from utils.draw.svg import Canvas

_ALT = (
    "Three shapes. First, DDP, MPI, Horovod and MultiWorkerMirrored: a launcher starts one process for each worker, "
    "each has all weights, and an all-reduce makes the gradients equal. TensorFlow has no launcher: you start them. "
    "Second, Mirrored: one process with a thread and a copy of the weights for each device, and an all-reduce among "
    "them. Third, ParameterServer: the chief sends work to the workers; each worker gets the weights from the ps and "
    "sends its gradients to it, without waiting for the other; the evaluator reads the checkpoints."
)
_WIDTH, _TOP = 300, 92


def frameworks() -> Picture:
    """Processes (boxes) and gradients (thick lines) of six frameworks, in three panels."""
    canvas = Canvas(960, 372, "Processes, and the way of the gradients", _ALT)
    for left, head, words in (
        (20, "one process for each worker", "DDP · MPI · Horovod · MultiWorkerMirrored"),
        (330, "one process for all", "Mirrored (and nn.DataParallel)"),
        (640, "roles", "ParameterServer"),
    ):
        canvas.text(left + _WIDTH / 2, 58, head, size=15, bold=True)
        canvas.text(left + _WIDTH / 2, 78, words, size=12.5, colour=palette.MUTED)
        canvas.box(left, _TOP, _WIDTH, 220, fill=palette.NODE, radius=12)
    _processes(canvas, 20)
    _devices(canvas, 330)
    _roles(canvas, 640)
    canvas.line([(250, 342), (300, 342)], palette.GREEN, width=4)
    canvas.text(308, 347, "gradients", size=13, anchor="start")
    canvas.box(420, 332, 28, 20, fill=palette.PROCESS)
    canvas.text(456, 347, "a process", size=13, anchor="start")
    canvas.box(570, 332, 28, 20, fill=palette.DEVICE)
    canvas.text(606, 347, "a copy of the weights", size=13, anchor="start")
    return canvas.picture()


def _worker(canvas: Canvas, x: float, y: float, name: str) -> None:
    canvas.box(x, y, 112, 78, fill=palette.PROCESS)
    canvas.text(x + 56, y + 22, name, size=13, bold=True)
    canvas.box(x + 14, y + 34, 84, 32, "weights", size=13)


def _processes(canvas: Canvas, left: float) -> None:
    canvas.box(
        left + 60, _TOP + 14, 180, 44, ["torchrun, mpiexec,", "horovodrun; else you"], size=12.5, fill=palette.PANEL
    )
    for number, x in enumerate((left + 20, left + 168)):
        canvas.line([(left + 150, _TOP + 58), (x + 56, _TOP + 92)], arrow="end")
        _worker(canvas, x, _TOP + 92, f"worker {number}")
        canvas.line([(x + 56, _TOP + 170), (x + 56, _TOP + 190)], palette.GREEN, width=4)
    canvas.line([(left + 76, _TOP + 190), (left + 224, _TOP + 190)], palette.GREEN, width=4)
    canvas.text(left + 150, _TOP + 210, "all-reduce", size=13)


def _devices(canvas: Canvas, left: float) -> None:
    canvas.box(left + 14, _TOP + 42, 272, 124, fill=palette.PROCESS)
    canvas.text(left + 150, _TOP + 66, "one process, a thread for each device", size=12.5, bold=True)
    for number, x in enumerate((left + 30, left + 170)):
        canvas.box(x, _TOP + 82, 100, 48, [f"device {number}:", "weights"], size=13)
        canvas.line([(x + 50, _TOP + 130), (x + 50, _TOP + 150)], palette.GREEN, width=4)
    canvas.line([(left + 80, _TOP + 150), (left + 220, _TOP + 150)], palette.GREEN, width=4)
    canvas.text(left + 150, _TOP + 190, "all-reduce inside the process", size=13)


def _roles(canvas: Canvas, left: float) -> None:
    canvas.box(left + 14, _TOP + 14, 96, 40, ["chief"], size=13, bold=True, fill=palette.PROCESS)
    canvas.box(left + 190, _TOP + 14, 96, 40, ["evaluator"], size=13, bold=True, fill=palette.PROCESS)
    canvas.text(left + 238, _TOP + 70, "reads checkpoints", size=11.5)
    for number, x in enumerate((left + 14, left + 126)):
        canvas.box(x, _TOP + 92, 96, 36, f"worker {number}", size=13, bold=True, fill=palette.PROCESS)
        canvas.line([(left + 62 + 10 * number, _TOP + 54), (x + 40, _TOP + 92)], arrow="end")
        canvas.line([(x + 40, _TOP + 128), (left + 100 + 60 * number, _TOP + 158)], palette.GREEN, width=4, arrow="end")
    canvas.text(left + 26, _TOP + 78, "work", size=12)
    canvas.box(left + 70, _TOP + 158, 120, 54, fill=palette.PROCESS)
    canvas.text(left + 88, _TOP + 190, "ps", size=13, bold=True)
    canvas.box(left + 108, _TOP + 168, 74, 34, "weights", size=13)
    canvas.text(left + 246, _TOP + 190, "nobody waits", size=11.5)
