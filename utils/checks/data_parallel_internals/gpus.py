"""What the probes of this lab share: simulated GPUs, a model for them, and a look at what moves between them."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from utils.checks.verdicts import NotStarted, Wrong

if TYPE_CHECKING:
    import torch
    from torch import nn

    from utils.simgpu import Profile

Moved = dict[str, int]  # bytes by link: {"GPU 0 → GPU 1": 64, "host → GPU 1": 8}
LAUNCH_S = 1e-7  # where a probe asks which GPUs work at the same time, launching must not decide it
MOVED = "the model itself has moved: .to() of a module changes it in place, .to() of a tensor gives a copy"


def cluster_of(gpus: int, **how: Any) -> list[torch.device]:
    from utils import simgpu

    simgpu.cluster(gpus_per_node=gpus, **how)
    return [simgpu.device(gpu) for gpu in range(gpus)]


def made_on(device: torch.device, make: Callable[[], nn.Module]) -> nn.Module:
    """A model made where it is wanted: the first ``Module.to`` of a process imports half a second of torch."""
    with device:
        return make()


def place_of(tensor: torch.Tensor) -> str:
    """Where a tensor lives: "GPU 1", or "host"."""
    return f"GPU {tensor.get_device()}" if tensor.device.type == "simgpu" else "host"


def moved(profile: Profile) -> Moved:
    """Bytes by link. A collective between p GPUs counts for each of the p − 1 that receive, or send."""
    total: Moved = {}
    for event in profile.events:
        if event.phase != "communication":
            continue
        root, *others = event.gpus
        links = [event.place]
        if event.place == "collective":
            links = [f"GPU {root} → GPU {other}" for other in others]
            if event.name == "reduce":
                links = [f"GPU {other} → GPU {root}" for other in others]
        for link in links:
            total[link] = total.get(link, 0) + event.nbytes
    return total


def computed_on(profile: Profile, phase: str) -> list[int]:
    """The GPUs that ran operators with arithmetic in a phase, "forward" or "backward"."""
    return sorted({event.gpus[0] for event in profile.events if event.phase == phase and event.flops})


def home_of(model: nn.Module) -> list[str]:
    """Where a model's tensors are."""
    return sorted({place_of(tensor) for tensor in (*model.parameters(), *model.buffers())})


@contextlib.contextmanager
def model_stays(model: nn.Module) -> Iterator[None]:
    """An error inside that comes from a model which has left GPU 0 says so."""
    try:
        yield
    except (Wrong, NotStarted):
        raise
    except BaseException as error:
        if home_of(model) == ["GPU 0"]:
            raise
        raise Wrong(MOVED, measured=home_of(model), expected=["GPU 0"]) from error


def numbers_of(tensor: torch.Tensor) -> Any:
    """A tensor's numbers on the host, as one that can leave the process."""
    return tensor.detach().cpu()


WIDTH, CLASSES = 8, 5
MEET_S = 2.0


def plain_model() -> nn.Module:
    """Layers without statistics, so that shares of a batch give what the whole batch gives.

    The first layer notices when two threads use one module at the same time: a thread waits in it for another one.
    """
    import torch
    from torch import nn

    here, inside, arrived = threading.Condition(), [], [0]

    class Watched(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if threading.current_thread() is threading.main_thread():
                return super().forward(x)
            with here:
                inside.append(id(self))
                arrived[0] += 1
                here.notify_all()
                here.wait_for(lambda: arrived[0] > 1, timeout=MEET_S)
                shared = inside.count(id(self)) > 1
            try:
                if shared:
                    raise Wrong(
                        "threads share one module: functional_call puts a replica's tensors into the module while it "
                        "runs, so another thread finds those of the wrong GPU. Use a loop, or a module for each thread."
                    )
                return super().forward(x)
            finally:
                with here:
                    inside.remove(id(self))

    torch.manual_seed(4)
    return nn.Sequential(Watched(WIDTH, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, CLASSES))


def refuse_the_library() -> None:
    """In this process ``nn.DataParallel`` refuses to work: writing it is the exercise."""
    from torch import nn

    def refuse(*_: Any, **__: Any) -> Any:
        raise Wrong("nn.DataParallel does the work here: write its four steps yourself.")

    nn.DataParallel.forward = refuse
    nn.parallel.data_parallel = refuse


CLOSE = {"relative": 1e-4, "absolute": 1e-5}  # sums in another order


def rows_on(rows: int, gpus: int) -> str:
    return f"{rows} row{'s' if rows > 1 else ''} on {gpus} GPUs"


def total_bytes(moved: Iterable[tuple[str, int]]) -> int:
    return sum(nbytes for _, nbytes in moved)


def not_through_the_host(moved: dict[str, int], what: str) -> None:
    if link := next((link for link in moved if link.endswith("host")), None):
        raise Wrong(
            f"{what} through the host: a copy from GPU to GPU needs no stop there",
            measured=f"{moved[link]:,} bytes {link}",
            expected="0 bytes",
        )


def ways_to_share(rows: int, gpus: int) -> list[list[int]]:
    """The two usual ways to share out rows: full shares first, or as evenly as possible."""
    most = math.ceil(rows / gpus)
    full = [min(most, rows - start) for start in range(0, rows, most)]
    even = [rows // gpus + (gpu < rows % gpus) for gpu in range(min(gpus, rows))]
    return [full, even]
