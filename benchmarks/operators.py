"""Operators one by one: simulated against measured on a real GPU.

    python benchmarks/operators.py                       every row, with the ratio of simulated to measured
    python benchmarks/measure_operators.py FILE          on a machine with a CUDA GPU (torch alone is needed)

A row is an operator forward ("fwd") or backward ("bwd"): CUDA events around repeats behind a GPU that is kept busy, so
that the host's launches do not count; the median of five such blocks. Products run long enough for the card's power
limit to act. The measured file is in ``benchmarks/measured/``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MEASURED = Path(__file__).parent / "measured"
Run = Callable[[], object]
Make = Callable[[str], Run]
BF16, FP32 = torch.bfloat16, torch.float32
SHORT = {BF16: "bf16", FP32: "fp32", torch.float16: "fp16"}
CASES: dict[str, Make] = {}


def _add(name: str, make: Make) -> None:
    assert name not in CASES, name
    CASES[name] = make


def _on(name: str, function: Callable[..., object], *shapes: tuple[int, ...], dtype: torch.dtype = BF16) -> None:
    """A row: a function of random tensors."""
    _add(name, lambda device: partial(function, *(torch.randn(one, device=device, dtype=dtype) for one in shapes)))


def _both(name: str, forward: Callable[[str], tuple[Callable[..., Any], list[Tensor]]]) -> None:
    """A forward row, and a backward one with the gradients of all tensors that are given."""

    def fwd(device: str) -> Run:
        function, inputs = forward(device)

        def run() -> None:
            with torch.no_grad():
                function(*inputs)

        return run

    def bwd(device: str) -> Run:
        function, inputs = forward(device)
        wanted = [one.requires_grad_() for one in inputs]
        out = function(*wanted)
        grad = torch.ones_like(out)
        return lambda: torch.autograd.grad(out, wanted, grad, retain_graph=True)

    _add(f"{name}, fwd", fwd)
    _add(f"{name}, bwd", bwd)


# --- Products -----------------------------------------------------------------------------------------------


def _product(name: str, rows: int, terms: int, columns: int, dtype: torch.dtype = BF16, **how: Any) -> None:
    """``x @ w.t()`` as a linear layer has it ("nt"), ``g @ w`` ("nn") or ``g.t() @ x`` ("tn")."""

    def make(device: str) -> Run:
        fill = torch.zeros if how.get("zeros") else torch.randn
        layout = how.get("layout", "nt")
        left = fill(*((terms, rows) if layout == "tn" else (rows, terms)), device=device, dtype=dtype)
        right = fill(*((columns, terms) if layout == "nt" else (terms, columns)), device=device, dtype=dtype)
        a, b = (left.t() if layout == "tn" else left), (right.t() if layout == "nt" else right)
        out = torch.empty(rows, columns, device=device, dtype=dtype)

        def run() -> None:
            with precision(bool(how.get("tf32"))):
                torch.mm(a, b, out=out)

        return run

    kind = "tf32" if how.get("tf32") else SHORT[dtype]
    extra = f" {how['layout']}" if "layout" in how else ""
    _add(f"product {name} {kind}{extra}{' zeros' if how.get('zeros') else ''}: {rows} × {terms} × {columns}", make)


@contextlib.contextmanager
def precision(tf32: bool) -> Iterator[None]:
    """Products of fp32 numbers may, or may not, be computed in TF32."""
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


def _products() -> None:
    for size in (1024, 2048, 4096, 8192, 16384):
        _product("square", size, size, size)
    _product("square", 8192, 8192, 8192, zeros=True)
    _product("square", 8192, 8192, 8192, torch.float16)
    for size in (4096, 8192):
        _product("square", size, size, size, FP32)
        _product("square", size, size, size, FP32, tf32=True)
    layers = {
        "8b": [(4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096)],
        "70b": [(8192, 10240), (8192, 57344), (28672, 8192)],
        "70b, a part of 8": [(8192, 1280), (1024, 8192), (8192, 7168), (3584, 8192)],
        "1b": [(2048, 6144), (2048, 8192), (8192, 2048)],
        "small": [(768, 2304), (768, 3072), (3072, 768)],
    }
    for model, sizes in layers.items():
        for terms, columns in sizes:
            for rows in (1024, 2048, 4096, 8192):
                if model in ("8b", "70b") or rows >= 4096:
                    _product(model, rows, terms, columns)
    for layout, (rows, terms, columns) in {"nn": (8192, 28672, 4096), "tn": (28672, 8192, 4096)}.items():
        _product("8b", rows, terms, columns, layout=layout)
    for width in (768, 2048, 4096):
        for words in (50257, 50304, 32001, 32000):
            _product(f"words {width}", 8192, width, words)
            _product(f"words {width}", 8192, words, width, layout="nn")
            _product(f"words {width}", words, 8192, width, layout="tn")
    for words in (50257, 50304):
        _product("words 768", 8192, 768, words, FP32)
        _product("words 768", 8192, 768, words, FP32, tf32=True)
    for size in (256, 512, 768):
        _product("small square", size, size, size)
    for rows in (1, 16, 64, 256, 512):
        _product("few rows", rows, 4096, 14336)
    for words in (50258, 50260, 50264, 50272):
        _product("words", 8192, 2048, words)
        _product("words", 8192, words, 2048, layout="nn")
    for rows in (8190, 8196):
        _product("odd rows", rows, 2048, 8192)
        _product("odd rows", 8192, rows, 2048, layout="tn")
    for count, rows, terms, columns in ((64, 2048, 128, 2048), (64, 2048, 2048, 128), (256, 512, 64, 512)):
        name = f"batched product bf16: {count} × {rows} × {terms} × {columns}"
        _on(name, torch.bmm, (count, rows, terms), (count, terms, columns))
    for groups, rows, terms, columns in ((8, 8192, 4096, 14336), (64, 16384, 2048, 1408), (64, 65536, 2048, 1408)):

        def grouped(device: str, shape: tuple[int, ...] = (groups, rows, terms, columns)) -> Run:
            many, m, k, n = shape
            a, b = torch.randn(m, k, device=device, dtype=BF16), torch.randn(many, n, k, device=device, dtype=BF16)
            ends = torch.arange(m // many, m + 1, m // many, device=device, dtype=torch.int32)
            return lambda: torch._grouped_mm(a, b.transpose(-2, -1), offs=ends)

        _add(f"grouped product bf16: {groups} groups, {rows} × {terms} × {columns}", grouped)

    def fp8(device: str) -> Run:
        a, b = (torch.randn(8192, 8192, device=device).to(torch.float8_e4m3fn) for _ in range(2))
        one = torch.ones((), device=device)
        return lambda: torch._scaled_mm(a, b.t(), one, one, out_dtype=BF16, use_fast_accum=True)

    _add("product square fp8: 8192 × 8192 × 8192", fp8)


# --- Attention ----------------------------------------------------------------------------------------------


def _attention() -> None:
    for batch, heads, length, width, causal in (
        (8, 12, 1024, 64, True),
        (16, 16, 512, 64, False),
        (64, 12, 197, 64, False),
        (4, 16, 2048, 64, True),
        (4, 32, 2048, 128, True),
        (2, 32, 4096, 128, True),
        (2, 32, 4096, 128, False),
        (1, 32, 8192, 128, True),
        (1, 32, 8192, 128, False),
        (2, 32, 4096, 64, True),
    ):
        _attend(batch, (heads, heads), length, (width, width), causal)
    _attend(1, (32, 8), 8192, (128, 128))
    _attend(2, (32, 8), 4096, (128, 128))
    _attend(1, (64, 8), 4096, (128, 128))
    _attend(1, (32, 32), 4096, (192, 128))
    _attend(8, (12, 12), 1024, (64, 64), dtype=FP32)


def _attend(
    batch: int, heads: tuple[int, int], length: int, widths: tuple[int, int], causal: bool = True, dtype: Any = BF16
) -> None:
    """``heads`` and ``widths``: of queries, and of keys and values (but keys are as wide as queries)."""
    (many, few), (wide, narrow) = heads, widths

    def make(device: str) -> tuple[Callable[..., Any], list[Tensor]]:
        sizes = ((many, wide), (few, wide), (few, narrow))
        tensors = [torch.randn(batch, length, n, w, device=device, dtype=dtype).transpose(1, 2) for n, w in sizes]
        grouped = {"enable_gqa": True} if few < many else {}
        return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal, **grouped), tensors

    what = f"{many}/{few} heads" if few < many else f"{many} heads"
    width = f"{wide}" if wide == narrow else f"{wide}/{narrow}"
    kind = f"{SHORT[dtype]}, " if dtype is not BF16 else ""
    _both(f"attention {kind}{'causal' if causal else 'full'}: {batch} × {what} × {length} × {width}", make)


# --- What memory limits -------------------------------------------------------------------------------------


def _unary(name: str, function: Callable[[Tensor], Tensor], make: Callable[[str], Tensor]) -> None:
    _both(name, lambda device: (function, [make(device)]))


def _elementwise() -> None:
    norms = {"rms norm": F.rms_norm, "layer norm": F.layer_norm}
    unary: dict[str, Any] = {"softmax": lambda x: x.softmax(-1), "gelu": F.gelu, "silu": F.silu}
    unary |= {"dropout": lambda x: F.dropout(x, 0.1)}
    for rows, width in ((8192, 4096), (16384, 8192), (65536, 768)):
        for dtype in (BF16, FP32) if width == 4096 else (BF16,):
            size, x = f"{SHORT[dtype]}: {rows} × {width}", _images(rows, width, dtype=dtype)
            for name, norm in norms.items():

                def normed(device: str, norm: Any = norm, x: Any = x, width: int = width, dtype: Any = dtype) -> Any:
                    weight = torch.ones(width, device=device).to(dtype)
                    return lambda x, weight: norm(x, (width,), weight), [x(device), weight]

                _both(f"{name} {size}", normed)
            for name, function in unary.items():
                _unary(f"{name} {size}", function, x)

    def simple(name: str, function: Callable[[Tensor, Tensor], object], dtype: torch.dtype = BF16) -> None:
        _on(f"{name} {SHORT[dtype]}: 2^28", function, (2**28,), (2**28,), dtype=dtype)

    simple("add", lambda a, b: a + b)
    simple("add", lambda a, b: a + b, FP32)
    simple("add_", lambda a, b: a.add_(b))
    simple("zero_", lambda a, b: a.zero_())
    simple("copy_", lambda a, b: a.copy_(b))
    simple("to fp32", lambda a, b: a.float())
    simple("sum", lambda a, b: a.sum())
    simple("sum of rows", lambda a, b: a.view(-1, 4096).sum(0))
    simple("cat", lambda a, b: torch.cat([a, b]))
    simple("transpose", lambda a, b: a.view(2**14, 2**14).t().contiguous())
    for words, dtype in ((50257, BF16), (50257, FP32), (128256, BF16)):

        def loss(device: str, words: int = words, dtype: torch.dtype = dtype) -> Any:
            scores = torch.randn(8192, words, device=device, dtype=dtype)
            targets = torch.randint(words, (8192,), device=device)
            return lambda x: F.cross_entropy(x, targets), [scores]

        _both(f"cross entropy {SHORT[dtype]}: 8192 × {words}", loss)

        def looked_up(device: str, words: int = words, dtype: torch.dtype = dtype) -> Any:
            table, which = torch.randn(words, 4096, device=device, dtype=dtype), torch.randint(words, (8192,))
            which = which.to(device)
            return lambda table: F.embedding(which, table), [table]

        _both(f"embedding {SHORT[dtype]}: 8192 of {words} × 4096", looked_up)


def _wide(where: Tensor, values: Tensor) -> Tensor:
    return where[:, None].expand_as(values)


def _tables() -> None:
    def rows(name: str, count: int, function: Callable[[Tensor, Tensor, Tensor], object]) -> None:
        def make(device: str) -> Run:
            table = torch.randn(2**17, 4096, device=device, dtype=BF16)
            where = torch.randperm(2**17)[:count].to(device)
            values = torch.randn(count, 4096, device=device, dtype=BF16)
            return lambda: function(table, where, values)

        _add(f"{name} bf16: {count} of 131072 × 4096", make)

    for count in (64, 16384):
        rows("index_put_", count, lambda table, where, values: table.index_put_((where,), values))
        rows("index_copy_", count, lambda table, where, values: table.index_copy_(0, where, values))
        rows("index_add_", count, lambda table, where, values: table.index_add_(0, where, values))
        rows("index_select", count, lambda table, where, values: table.index_select(0, where))
        rows("scatter_", count, lambda table, where, values: table.scatter_(0, _wide(where, values), values))
        rows("gather", count, lambda table, where, values: table.gather(0, _wide(where, values)))


# --- Convolutions, batch norm -------------------------------------------------------------------------------


def _images(*shape: int, dtype: torch.dtype = BF16, last: bool = False) -> Callable[[str], Tensor]:
    """What makes a tensor of this shape on a device; ``last``: channels last."""
    layout = torch.channels_last if last else torch.contiguous_format
    return lambda device: torch.randn(shape, device=device, dtype=dtype).to(memory_format=layout)


def _convolve(
    name: str, shape: tuple[int, ...], filters: tuple[int, int, int], how: dict[str, Any], last: bool, dtype: Any
) -> None:
    turned, (incoming, outgoing, side) = name.startswith("4×4 transposed"), filters
    weights = (incoming, outgoing) if turned else (outgoing, incoming // how.get("groups", 1))
    x, w = (_images(*size, dtype=dtype, last=last) for size in (shape, (*weights, side, side)))
    function = F.conv_transpose2d if turned else F.conv2d
    kind = f"{'tf32' if dtype is FP32 else 'bf16'} {'NHWC' if last else 'NCHW'}"
    size = "×".join(map(str, shape))
    apply = partial(function, **how)
    _both(f"convolution {name} {kind}: {size} → {outgoing}", lambda device: (apply, [x(device), w(device)]))


def _convolutions() -> None:
    cases: tuple[tuple[str, tuple[int, ...], tuple[int, int, int], dict[str, Any]], ...] = (
        ("1×1", (64, 256, 56, 56), (256, 64, 1), {}),
        ("1×1", (64, 1024, 14, 14), (1024, 256, 1), {}),
        ("1×1", (64, 64, 56, 56), (64, 256, 1), {}),
        ("3×3", (64, 64, 56, 56), (64, 64, 3), {"padding": 1}),
        ("3×3", (64, 256, 14, 14), (256, 256, 3), {"padding": 1}),
        ("3×3", (64, 512, 28, 28), (512, 512, 3), {"padding": 1}),
        ("7×7 stride 2", (64, 3, 224, 224), (3, 64, 7), {"padding": 3, "stride": 2}),
        ("16×16 stride 16", (64, 3, 224, 224), (3, 768, 16), {"stride": 16}),
        ("3×3 depthwise", (32, 512, 28, 28), (512, 512, 3), {"padding": 1, "groups": 512}),
        ("7×7 depthwise", (64, 192, 56, 56), (192, 192, 7), {"padding": 3, "groups": 192}),
        ("3×3, 32 groups", (64, 256, 28, 28), (256, 256, 3), {"padding": 1, "groups": 32}),
        ("4×4 transposed stride 2", (64, 256, 28, 28), (256, 128, 4), {"padding": 1, "stride": 2}),
    )
    for dtype, last in ((BF16, False), (BF16, True), (FP32, False)):
        for case in cases:
            if dtype is BF16 or case[0][:3] != "7×7":
                _convolve(*case, last, dtype)
    for last in (False, True):
        layout = "NHWC" if last else "NCHW"
        for training, dtype in product((True, False), (BF16, FP32)):

            def normed(device: str, last: bool = last, training: bool = training, dtype: Any = dtype) -> Any:
                x = _images(64, 256, 56, 56, dtype=dtype, last=last)(device)
                module = nn.BatchNorm2d(256).to(device).train(training)
                return module, [x]

            _both(f"batch norm {SHORT[dtype]} {'train' if training else 'eval'} {layout}: 64×256×56×56", normed)
        maps = _images(64, 64, 112, 112, last=last)
        _unary(f"relu bf16 {layout}: 64×64×112×112", F.relu, maps)
        _unary(f"max pool bf16 {layout}: 64×64×112×112", lambda x: F.max_pool2d(x, 3, 2, 1), maps)


# --- Optimizers, copies -------------------------------------------------------------------------------------


def _parameters(device: str, count: int, each: int) -> list[nn.Parameter]:
    """With a gradient each."""
    found = [nn.Parameter(torch.randn(each, device=device)) for _ in range(count)]
    for parameter in found:
        parameter.grad = torch.randn_like(parameter)
    return found


def _optimizers() -> None:
    kinds: dict[str, Callable[[list[nn.Parameter]], Run]] = {
        "AdamW foreach": lambda some: torch.optim.AdamW(some, foreach=True).step,
        "AdamW fused": lambda some: torch.optim.AdamW(some, fused=True).step,
        "SGD momentum foreach": lambda some: torch.optim.SGD(some, 1e-3, momentum=0.9, foreach=True).step,
        "AdamW for loop": lambda some: torch.optim.AdamW(some, foreach=False).step,
        "clip_grad_norm_": lambda some: lambda: nn.utils.clip_grad_norm_(some, 1.0, foreach=True),
    }
    for each, (name, kind) in product((1_000_000, 10_000_000), kinds.items()):
        if each > 1_000_000 or not name.endswith("loop"):
            _add(
                f"{name} fp32: 100 × {each}", lambda device, each=each, kind=kind: kind(_parameters(device, 100, each))
            )


def _copies() -> None:
    for pinned, back in product((True, False), (False, True)):

        def make(device: str, pinned: bool = pinned, back: bool = back) -> Run:
            here = torch.zeros(2**28, dtype=torch.uint8)
            here = here.pin_memory() if pinned else here
            there = torch.zeros(2**28, dtype=torch.uint8, device=device)
            source, target = (there, here) if back else (here, there)
            return lambda: target.copy_(source, non_blocking=pinned)

        name = f"{'pinned' if pinned else 'pageable'} {'to the host' if back else 'from the host'}"
        _add(f"copy {name}: 256 MiB", make)

    def own(device: str) -> Run:
        a, b = (torch.zeros(2**30, dtype=torch.uint8, device=device) for _ in range(2))
        return lambda: a.copy_(b)

    _add("copy on the GPU: 1 GiB", own)


for _group in (_products, _attention, _elementwise, _tables, _convolutions, _optimizers, _copies):
    _group()


# --- Simulating ---------------------------------------------------------------------------------------------


def simulate(gpu: Any, names: list[str]) -> dict[str, float | str]:
    """Seconds of each row on a simulated GPU, without the host's launches."""
    import simgpu

    found: dict[str, float | str] = {}
    for name in names:
        with simgpu.cluster(gpus_per_node=1, gpu=gpu, numbers=False, launch_s=0):
            try:
                run = CASES[name]("simgpu:0")
                run()
                with simgpu.profile() as prof:
                    run()
                found[name] = prof.elapsed
            except Exception as error:
                found[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"
    return found


FITTED = (
    *("product square bf16: 8192", "product square fp32: 8192", "product words 2048", "attention causal: 2 × 32 heads"),
    *("attention full: 1 × 32 heads", "attention fp32", "layer norm bf16: 16384", "softmax", "batch norm", "max pool"),
    *("embedding bf16: 8192 of 50257 × 4096, bwd", "index_", "scatter_", "to fp32", "add bf16", "copy on the GPU"),
    *("convolution 7×7 depthwise", "convolution 3×3 bf16 NCHW: 64×64", "cross entropy bf16: 8192 × 50257"),
)
"""Rows, by their beginnings, that set a constant of ``simgpu.time.counting`` or ``costs``, or a share of the H100."""
HOSTS = {"fwd": 30e-6, "bwd": 125e-6}
"""Shorter rows measure the host, which could not launch faster."""


def report(path: Path, gpu: str) -> None:
    """Print simulated against measured, and how far apart they are in each group."""
    measured = json.loads(path.read_text())
    rows = {name: one["seconds"] for name, one in measured["rows"].items() if "seconds" in one and name in CASES}
    found, errors = simulate(gpu, list(rows)), defaultdict(list)
    print(*(f"{name}: {what}" for name, what in measured["about"].items()), sep="\n", end="\n\n")
    print(f"{'':76}{'measured µs':>12}{'simulated':>12}{'ratio':>8}")
    for name, seconds in rows.items():
        ours, fitted = found[name], name.startswith(FITTED)
        short = seconds < HOSTS["bwd" if name.endswith("bwd") else "fwd"]
        note = "fitted" if fitted else "as long as the host's launch" if short else ""
        if isinstance(ours, str):
            print(f"{name:76}{seconds * 1e6:12.1f}  {ours}")
            continue
        print(f"{name:76}{seconds * 1e6:12.1f}{ours * 1e6:12.1f}{ours / seconds:8.2f}  {note}")
        if not note:
            errors[re.split(r"[ :,]", name)[0]].append(abs(ours / seconds - 1))
    print("\nNot fitted, and longer than a launch:")
    for group, off in sorted(errors.items()):
        print(f"{group:20}{len(off):4} rows: median error {statistics.median(off):.1%}, worst {max(off):.1%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--file", type=Path, default=MEASURED / "h100.json")
    parser.add_argument("--gpu", default="H100")
    options = parser.parse_args()
    report(options.file, options.gpu)
