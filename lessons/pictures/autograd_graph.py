"""The graph behind the output of ``nn.DataParallel``, from GatherBackward through the replicas to the parameters.

Nothing is drawn from memory of how it should look: the picture shows the nodes that are found by following
``grad_fn.next_functions``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from utils.draw import palette
from utils.draw.picture import Picture
from utils.draw.svg import Canvas, shorten

if TYPE_CHECKING:
    from torch import Tensor, nn

WIDTH, MARGIN, GAP = 900, 20, 16
MAIN, SIDE, TRACK = 124, 96, 7  # widths: boxes of the chain, boxes beside it, lines that lead down
BOX, ROW = 36, 60
SIZE = 11.5


@dataclass(eq=False)
class Node:
    """A node of autograd's graph.

    Args:
        name: as torch calls it, without "torch::autograd::".
        function: torch's own object.
        depth: steps from the output, on the longest way.
        branches: the replicas (numbered as GatherBackward has them) from which one comes here.
        children: the nodes that get its gradients.
    """

    name: str
    function: Any
    depth: int = 0
    branches: set[int] = field(default_factory=set)
    children: list[Node] = field(default_factory=list)
    height: int = 0


def walk(output: Tensor) -> list[Node]:
    """All nodes from ``output.grad_fn`` to the leaves, each after those that lead to it.

    Raises:
        ValueError: the output has no graph.
    """
    if output.grad_fn is None:
        raise ValueError("this tensor has no grad_fn: it was made without gradients, or is a leaf itself")
    nodes: dict[Any, Node] = {}
    order: list[Node] = []

    def visit(function: Any) -> Node:
        if function not in nodes:
            node = nodes[function] = Node(function.name().rpartition("::")[2], function)
            children = [visit(child) for child, _ in function.next_functions if child is not None]
            node.children = list(dict.fromkeys(children))
            node.height = 1 + max((child.height for child in children), default=0)
            order.append(node)
        return nodes[function]

    visit(output.grad_fn)
    order.reverse()
    for node in order:
        for child in node.children:
            child.depth = max(child.depth, node.depth + 1)
    return order


def autograd_graph(output: Tensor, model: nn.Module, title: str = "What backward will walk") -> Picture:
    """A picture of the graph of an output of ``nn.DataParallel``, with a column for each replica.

    Args:
        output: what the wrapped model returned (or a loss made of it).
        model: the model that was wrapped; its parameters give the leaves their names.
        title: heading of the picture.

    Raises:
        ValueError: there is no GatherBackward in the graph.
    """
    nodes = walk(output)
    gathers = [node for node in nodes if hasattr(node.function, "input_gpus")]
    if len(gathers) != 1:
        raise ValueError(f"the graph has {len(gathers)} GatherBackward, and 1 is needed: was it made by DataParallel?")
    (gather,) = gathers
    for i, (root, _) in enumerate(gather.function.next_functions):
        _mark(next(node for node in nodes if node.function is root), i)
    above = [node for node in nodes if not node.branches and node is not gather]
    columns = [[node for node in nodes if node.branches == {i}] for i in range(len(gather.function.input_gpus))]
    joints = [node for node in nodes if len(node.branches) > 1 and not hasattr(node.function, "variable")]
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    below = (node.function for joint in joints for node in joint.children)
    ends = [function.variable for function in below if hasattr(function, "variable")]
    leaves = [(names.get(id(parameter), "?"), parameter) for parameter in ends]
    return _Drawing(above, gather, columns, joints[0], leaves, names).draw(title)


def _mark(node: Node, branch: int) -> None:
    if branch not in node.branches:
        node.branches.add(branch)
        for child in node.children:
            _mark(child, branch)


@dataclass
class _Drawing:
    """Places the boxes: the gather on top, the replicas side by side, the broadcast and the leaves below."""

    above: list[Node]
    gather: Node
    columns: list[list[Node]]
    joint: Node
    leaves: list[tuple[str, Any]]
    names: dict[int, str]

    def draw(self, title: str) -> Picture:
        rows = max(node.depth for column in self.columns for node in column) - self.gather.depth
        self.top = 48 + len(self.above) * ROW
        self.first = self.top + BOX + 52  # top of the replicas' first row
        self.bottom = self.first + rows * ROW + 10  # top of the broadcast
        self.column = (WIDTH - 2 * MARGIN - (len(self.columns) - 1) * GAP) / len(self.columns)
        canvas = self.canvas = Canvas(WIDTH, self.bottom + BOX + 126, title, f"{title}. {self._words()}")
        middle = WIDTH / 2
        for i, node in enumerate(self.above):
            canvas.box(middle - 90, 48 + i * ROW, 180, BOX, node.name, size=12, mono=True)
            canvas.line([(middle, 48 + i * ROW + BOX), (middle, 48 + (i + 1) * ROW)], arrow="end")
        self._bar(self.top, f"{self.gather.name}: hands out the gradient's rows, {self._rows()}")
        for i, column in enumerate(self.columns):
            self._replica(i, column)
        self._bar(self.bottom, f"{self.joint.name}: adds up the gradients of the replicas")
        self._leaves()
        return canvas.picture()

    def _rows(self) -> str:
        return " + ".join(map(str, self.gather.function.input_sizes))

    def _words(self) -> str:
        gpus = zip(self.gather.function.input_gpus, self.columns, strict=True)
        replicas = "; ".join(f"GPU {gpu}: {', '.join(node.name for node in column)}" for gpu, column in gpus)
        ends = ", ".join(f"{name} {list(parameter.shape)}" for name, parameter in self.leaves)
        return (
            f"{self.gather.name} cuts the gradient of the output into {self._rows()} rows, one part for each GPU. "
            f"Each part goes down through its replica. {replicas}. All replicas end in one {self.joint.name}, "
            f"which adds up their gradients, and from there it goes to the {len(self.leaves)} parameters of the model: "
            f"{ends}."
        )

    def _bar(self, y: float, words: str) -> None:
        """A node that all GPUs share: communication, so green, and without a hatch under its words."""
        look = {"fill": "#CDEBDF", "stroke": palette.GREEN, "stroke_width": 2}
        self.canvas.box(MARGIN, y, WIDTH - 2 * MARGIN, BOX, words, size=13, bold=True, **look)

    def _replica(self, i: int, column: list[Node]) -> None:
        canvas, left = self.canvas, MARGIN + i * (self.column + GAP)
        gpu = self.gather.function.input_gpus[i]
        height = self.bottom - self.first + 8
        canvas.box(left, self.first - 30, self.column, height, fill=palette.DEVICE, stroke=palette.DEVICE)
        canvas.text(left + self.column - 10, self.first - 12, f"replica on GPU {gpu}", size=12, anchor="end", bold=True)
        chain = [column[0]]
        while inner := [child for child in chain[-1].children if child in column]:
            chain.append(max(inner, key=lambda node: node.height))
        places = {node: self._place(node, left, node in chain) for node in column}
        canvas.line([(left + 10 + MAIN / 2, self.top + BOX), (left + 10 + MAIN / 2, self.first)], arrow="end")
        track = left + self.column - 8
        for node in column:  # lines first: the boxes lie on them
            x, y, wide = places[node]
            for child in node.children:
                if child in places:
                    self._inner_line(places[node], places[child])
                elif child is self.joint:
                    canvas.line([(x + wide, y + BOX / 2), (track, y + BOX / 2), (track, self.bottom)], arrow="end")
                    track -= TRACK
        for node in column:
            x, y, wide = places[node]
            ends = self._parameters(node)
            lines = [node.name, f"→ {', '.join(ends)}"] if ends else [node.name]
            canvas.box(x, y, wide, BOX, [shorten(line, wide - 6, SIZE) for line in lines], palette.PANEL, size=SIZE)

    def _place(self, node: Node, left: float, in_chain: bool) -> tuple[float, float, float]:
        y = self.first + (node.depth - self.gather.depth - 1) * ROW
        return (left + 10, y, MAIN) if in_chain else (left + 10 + MAIN + 10, y, SIDE)

    def _inner_line(self, start: tuple[float, float, float], end: tuple[float, float, float]) -> None:
        x, y, wide = start
        x_end, y_end, wide_end = end
        target = x_end + wide_end / 2
        source = x + wide / 2 if x == x_end else x + wide - 16
        self.canvas.line([(source, y + BOX), (target, y_end)], arrow="end")

    def _parameters(self, node: Node) -> list[str]:
        """The parameters whose gradients this node sends to the broadcast."""
        found = []
        leaves = [leaf for leaf, _ in self.joint.function.next_functions if leaf is not None]
        for function, output in node.function.next_functions:
            if function is self.joint.function:
                parameter = leaves[output % len(leaves)].variable
                found.append(self.names.get(id(parameter), "?"))
        return found

    def _leaves(self) -> None:
        canvas, y = self.canvas, self.bottom + BOX
        gpu = self.gather.function.input_gpus[0]
        canvas.box(MARGIN, y + 24, WIDTH - 2 * MARGIN, 88, fill=palette.NODE, stroke=palette.NODE)
        canvas.text(
            MARGIN + 12, y + 102, f"AccumulateGrad: the model's own parameters, on GPU {gpu}", 12, "start", True
        )
        step = (WIDTH - 2 * MARGIN) / len(self.leaves)
        for i, (name, parameter) in enumerate(self.leaves):
            x = MARGIN + i * step
            canvas.line([(x + step / 2, y), (x + step / 2, y + 40)], arrow="end")
            words = f"{name} {list(parameter.shape)}"
            canvas.box(x + 6, y + 40, step - 12, 34, shorten(words, step - 18, 12), fill=palette.PROCESS, size=12)
