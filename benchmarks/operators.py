"""Operators one by one: simulated against measured on a real GPU.

    python benchmarks/operators.py                       every row, with the ratio of simulated to measured
    python benchmarks/operators.py --measure FILE        on a machine with a CUDA GPU (torch alone is needed)

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
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
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

        def batched(device: str, shape: tuple[int, ...] = (count, rows, terms, columns)) -> Run:
            many, m, k, n = shape
            a, b = (torch.randn(many, *two, device=device, dtype=BF16) for two in ((m, k), (k, n)))
            return lambda: torch.bmm(a, b)

        _add(f"batched product bf16: {count} × {rows} × {terms} × {columns}", batched)
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
        _attend(batch, heads, heads, length, (width, width), causal)
    _attend(1, 32, 8, 8192, (128, 128), True)
    _attend(2, 32, 8, 4096, (128, 128), True)
    _attend(1, 64, 8, 4096, (128, 128), True)
    _attend(1, 32, 32, 4096, (192, 128), True)
    _attend(8, 12, 12, 1024, (64, 64), True, FP32)


def _attend(
    batch: int,
    heads: int,
    kv_heads: int,
    length: int,
    widths: tuple[int, int],
    causal: bool,
    dtype: torch.dtype = BF16,
) -> None:
    def make(device: str) -> tuple[Callable[..., Any], list[Tensor]]:
        sizes = ((heads, widths[0]), (kv_heads, widths[0]), (kv_heads, widths[1]))
        tensors = [torch.randn(batch, length, n, w, device=device, dtype=dtype).transpose(1, 2) for n, w in sizes]
        grouped = {"enable_gqa": True} if kv_heads < heads else {}
        return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal, **grouped), tensors

    what = f"{heads}/{kv_heads} heads" if kv_heads < heads else f"{heads} heads"
    width = f"{widths[0]}" if widths[0] == widths[1] else f"{widths[0]}/{widths[1]}"
    kind = f"{SHORT[dtype]}, " if dtype is not BF16 else ""
    _both(f"attention {kind}{'causal' if causal else 'full'}: {batch} × {what} × {length} × {width}", make)


# --- What memory limits -------------------------------------------------------------------------------------


def _elementwise() -> None:
    for rows, width in ((8192, 4096), (16384, 8192), (65536, 768)):
        for dtype in (BF16, FP32) if width == 4096 else (BF16,):
            size = f"{SHORT[dtype]}: {rows} × {width}"
            for name, norm in (("rms norm", F.rms_norm), ("layer norm", F.layer_norm)):

                def normed(device: str, norm: Any = norm, shape: Any = (rows, width), dtype: Any = dtype) -> Any:
                    x, w = torch.randn(shape, device=device, dtype=dtype), torch.ones(shape[1], device=device)
                    return lambda x, w: norm(x, (shape[1],), w), [x, w.to(dtype)]

                _both(f"{name} {size}", normed)
            for name, function in (
                ("softmax", lambda x: x.softmax(-1)),
                ("gelu", F.gelu),
                ("silu", F.silu),
                ("dropout", lambda x: F.dropout(x, 0.1)),
            ):

                def one(device: str, f: Any = function, shape: Any = (rows, width), dtype: Any = dtype) -> Any:
                    return f, [torch.randn(shape, device=device, dtype=dtype)]

                _both(f"{name} {size}", one)
    big = 2**28

    def pair(device: str, dtype: torch.dtype = BF16) -> tuple[Tensor, Tensor]:
        return torch.randn(big, device=device, dtype=dtype), torch.randn(big, device=device, dtype=dtype)

    def simple(name: str, function: Callable[[Tensor, Tensor], object], dtype: torch.dtype = BF16) -> None:
        def make(device: str) -> Run:
            a, b = pair(device, dtype)
            return lambda: function(a, b)

        _add(f"{name} {SHORT[dtype]}: 2^28", make)

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
        rows(
            "scatter_", count, lambda table, where, values: table.scatter_(0, where[:, None].expand_as(values), values)
        )
        rows("gather", count, lambda table, where, values: table.gather(0, where[:, None].expand_as(values)))


# --- Convolutions, batch norm -------------------------------------------------------------------------------


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
        ("4×4 transposed stride 2", (64, 256, 28, 28), (256, 128, 4), {"padding": 1, "stride": 2, "transposed": True}),
    )
    for dtype in (BF16, FP32):
        for last in (False, True):
            for name, images, (incoming, filters, side), how in cases:
                if dtype is FP32 and (last or name[:3] == "7×7"):
                    continue

                def make(
                    device: str, images=images, incoming=incoming, filters=filters, side=side, how=how,
                    dtype=dtype, last=last,
                ) -> tuple[Callable[..., Any], list[Tensor]]:  # fmt: skip
                    layout = torch.channels_last if last else torch.contiguous_format
                    x = torch.randn(images, device=device, dtype=dtype).to(memory_format=layout)
                    options = dict(how)
                    turned = options.pop("transposed", False)
                    shape = (incoming, filters) if turned else (filters, incoming // how.get("groups", 1))
                    w = torch.randn(*shape, side, side, device=device, dtype=dtype).to(memory_format=layout)
                    function = F.conv_transpose2d if turned else F.conv2d
                    return lambda x, w: function(x, w, **options), [x, w]

                kind = f"{'tf32' if dtype is FP32 else 'bf16'} {'NHWC' if last else 'NCHW'}"
                _both(f"convolution {name} {kind}: {'×'.join(map(str, images))} → {filters}", make)
    for last in (False, True):
        for training in (True, False):
            for dtype in (BF16, FP32):

                def normed(device: str, last=last, training=training, dtype=dtype) -> Any:
                    layout = torch.channels_last if last else torch.contiguous_format
                    x = torch.randn(64, 256, 56, 56, device=device, dtype=dtype).to(memory_format=layout)
                    module = nn.BatchNorm2d(256).to(device).train(training)
                    return lambda x: module(x), [x]

                how = f"{SHORT[dtype]} {'train' if training else 'eval'} {'NHWC' if last else 'NCHW'}"
                _both(f"batch norm {how}: 64×256×56×56", normed)
        for name, function in (("relu", F.relu), ("max pool", lambda x: F.max_pool2d(x, 3, 2, 1))):

            def mapped(device: str, last=last, function=function) -> Any:
                layout = torch.channels_last if last else torch.contiguous_format
                return function, [torch.randn(64, 64, 112, 112, device=device, dtype=BF16).to(memory_format=layout)]

            _both(f"{name} bf16 {'NHWC' if last else 'NCHW'}: 64×64×112×112", mapped)


# --- Optimizers, copies -------------------------------------------------------------------------------------


def _optimizers() -> None:
    for count, each in ((100, 1_000_000), (100, 10_000_000)):
        for name, kind, options in (
            ("AdamW foreach", torch.optim.AdamW, {"foreach": True}),
            ("AdamW fused", torch.optim.AdamW, {"fused": True}),
            ("SGD momentum foreach", torch.optim.SGD, {"foreach": True, "momentum": 0.9}),
            ("AdamW for loop", torch.optim.AdamW, {"foreach": False}),
        ):
            if name.endswith("loop") and each < 10_000_000:
                continue

            def make(device: str, count=count, each=each, kind=kind, options=options) -> Run:
                tensors = [nn.Parameter(torch.randn(each, device=device)) for _ in range(count)]
                for one in tensors:
                    one.grad = torch.randn_like(one)
                return kind(tensors, lr=1e-3, **options).step

            _add(f"{name} fp32: {count} × {each}", make)

        def clip(device: str, count=count, each=each) -> Run:
            tensors = [nn.Parameter(torch.randn(each, device=device)) for _ in range(count)]
            for one in tensors:
                one.grad = torch.randn_like(one)
            return lambda: nn.utils.clip_grad_norm_(tensors, 1.0, foreach=True)

        _add(f"clip_grad_norm_ fp32: {count} × {each}", clip)


def _copies() -> None:
    for name, pinned in (("pinned", True), ("pageable", False)):
        for back in (False, True):

            def make(device: str, pinned=pinned, back=back) -> Run:
                here = torch.zeros(2**28, dtype=torch.uint8)
                here = here.pin_memory() if pinned else here
                there = torch.zeros(2**28, dtype=torch.uint8, device=device)
                if back:
                    return lambda: here.copy_(there, non_blocking=pinned)
                return lambda: there.copy_(here, non_blocking=pinned)

            _add(f"copy {name} {'to the host' if back else 'from the host'}: 256 MiB", make)

    def own(device: str) -> Run:
        a, b = (torch.zeros(2**30, dtype=torch.uint8, device=device) for _ in range(2))
        return lambda: a.copy_(b)

    _add("copy on the GPU: 1 GiB", own)


for _group in (_products, _attention, _elementwise, _tables, _convolutions, _optimizers, _copies):
    _group()


# --- Measuring ----------------------------------------------------------------------------------------------


class Smi:
    """Power and clocks, ten times a second, by nvidia-smi."""

    def __init__(self) -> None:
        query = "--query-gpu=power.draw.instant,clocks.sm,clocks.mem,temperature.gpu"
        command = ["nvidia-smi", query, "--format=csv,noheader,nounits", "-lms", "50"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.seen: list[tuple[float, list[float]]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):
                self.seen.append((time.monotonic(), [float(one) for one in line.split(",")]))

    def between(self, began: float, ended: float) -> dict[str, float]:
        rows = [values for when, values in self.seen if began <= when <= ended]
        if len(rows) < 3:
            return {}
        watts, clock = (statistics.median(column) for column in list(zip(*rows, strict=True))[:2])
        return {"watts": round(watts), "mhz": round(clock)}


def measure_one(run: Run, smi: Smi, block_s: float, blocks: int = 5) -> dict[str, float]:
    """Median seconds, and power and clocks while it ran."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def timed(repeats: int) -> float:
        torch.cuda._sleep(20_000_000)  # some 10 ms: the host gets ahead
        events[0].record()
        for _ in range(repeats):
            run()
        events[1].record()
        torch.cuda.synchronize()
        return events[0].elapsed_time(events[1]) / 1e3 / repeats

    run()
    timed(2)
    estimate = timed(3)
    repeats = max(2, min(int(block_s / estimate), 4000))
    timed(repeats)  # the clocks settle
    began = time.monotonic()
    found = [timed(repeats) for _ in range(blocks)]
    return {"seconds": statistics.median(found), **smi.between(began, time.monotonic())}


def measure(path: Path, limit_s: float) -> None:
    """Every row on this machine's GPU, into a JSON file."""
    end, smi = time.monotonic() + limit_s, Smi()
    asked = "--query-gpu=name,power.limit,clocks.max.sm,clocks.max.mem,driver_version"
    card = subprocess.run(["nvidia-smi", asked, "--format=csv,noheader"], capture_output=True, text=True).stdout
    time.sleep(1)
    idle = smi.seen[-1][1] if smi.seen else []
    rows: dict[str, Any] = {}
    about = {"card": card.strip(), "torch": torch.__version__, "date": f"{datetime.now(UTC):%Y-%m-%d}", "idle": idle}
    properties = torch.cuda.get_device_properties()
    about["multiprocessors"] = properties.multi_processor_count
    for name, make in CASES.items():
        if time.monotonic() > end:
            rows[name] = {"error": "no time left"}
            continue
        try:
            rows[name] = measure_one(make("cuda"), smi, 0.12 if "product" in name else 0.04)
        except Exception as error:
            rows[name] = {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
        torch.cuda.empty_cache()
        path.write_text(json.dumps({"about": about, "rows": rows}, indent=1, ensure_ascii=False))
        print(name, rows[name], flush=True)
    smi.process.terminate()


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
    parser.add_argument("--measure", type=Path, help="measure on this machine's GPU, into this file")
    parser.add_argument("--limit", type=float, default=240, help="seconds for measuring")
    parser.add_argument("--file", type=Path, default=MEASURED / "h100.json")
    parser.add_argument("--gpu", default="H100")
    options = parser.parse_args()
    if options.measure:
        measure(options.measure, options.limit)
    else:
        report(options.file, options.gpu)
