"""The parameter server on real gloo ranks: equal to one process, bounded, counted; and in simulated time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector

import utils
from lessons.algorithms.parameter_server import Record, simulate, train
from utils.training import data

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the functions here run on ranks

BATCH, LR = 16, 0.2
PARAMETERS = 64 * 8 + 8 + 8 * 10 + 10


def small_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10))


def loss_of(slow: float = 0.0) -> Callable[[nn.Module, int, int], Tensor]:
    """The loss of a worker's batch; worker 0 sleeps so many seconds before."""
    digits = data.digits()

    def loss(model: nn.Module, worker: int, step: int) -> Tensor:
        time.sleep(slow if worker == 0 else 0.0)
        rows = (torch.arange(BATCH) + BATCH * (8 * step + worker)) % 1440
        return cross_entropy(model(digits.train_images[rows]), digits.train_labels[rows])

    return loss


def whole_loss(model: nn.Module) -> float:
    digits = data.digits()
    return cross_entropy(model(digits.train_images), digits.train_labels).item()


def run(arguments: dict[str, Any], slow: float = 0.0, unequal_start: bool = False) -> Record | None:
    import torch.distributed as dist

    model = small_model(dist.get_rank() if unequal_start else 0)
    return train(model, loss_of(slow), lr=LR, evaluate=whole_loss, **arguments)


def on_ranks(ranks: int, slow: float = 0.0, unequal_start: bool = False, **arguments: Any) -> list[Record]:
    return utils.launch(
        run, arguments, slow, unequal_start, ranks=ranks, backend="gloo", timeout=240, show_output=False
    )  # fmt: skip


def one_process(rounds: int, workers: int) -> tuple[Tensor, list[float]]:
    """Plain SGD on the batches of all workers together, written without any server."""
    model, loss, losses = small_model(), loss_of(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for step in range(rounds):
        losses.append(whole_loss(model))
        optimizer.zero_grad()
        (sum(loss(model, worker, step) for worker in range(workers)) / workers).backward()
        optimizer.step()
    return parameters_to_vector(model.parameters()).detach(), [*losses, whole_loss(model)]


# ---------------------------------------------------------------------- synchronous
@pytest.mark.parametrize(("servers", "workers"), [(1, 1), (1, 4), (2, 3), (3, 2)])
def test_the_synchronous_server_gives_the_parameters_of_one_process(servers: int, workers: int) -> None:
    records = on_ranks(servers + workers, servers=servers, gradients=6 * workers, unequal_start=servers == 1)
    expected, losses = one_process(6, workers)
    found = torch.cat([record.parameters for record in records[:servers]])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)  # the mean of gradients, not of losses
    for record in records[:servers]:
        assert (record.role, record.updates, record.gradients) == ("server", 6, [6] * workers)
        assert record.staleness == [0] * 6 * workers
    if servers == 1:
        assert [point.updates for point in records[0].history] == list(range(7))
        assert [point.loss for point in records[0].history] == pytest.approx(losses, rel=1e-4)


# ---------------------------------------------------------------------- asynchronous and bounded
def test_an_asynchronous_server_takes_exactly_the_gradients_asked_for() -> None:
    server, *workers = on_ranks(4, 0.05, gradients=60, mode="asynchronous", every=20)
    assert sum(server.gradients) == server.updates == len(server.staleness) == 60
    assert [worker.gradients for worker in workers] == [[count] for count in server.gradients]
    assert min(server.staleness) >= 0 and max(server.staleness) > 0
    assert [point.updates for point in server.history] == [0, 20, 40, 60]
    assert server.history[-1].loss < server.history[0].loss
    assert all(a.seconds <= b.seconds for a, b in zip(server.history, server.history[1:], strict=False))


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_nobody_gets_further_ahead_than_the_bound(bound: int) -> None:
    server = on_ranks(5, 0.02, gradients=60, mode="bounded", bound=bound)[0]
    assert sum(server.gradients) == server.updates == 60
    assert max(server.ahead) <= bound
    assert max(server.staleness) <= 3 * (2 * bound + 1)  # each other worker: from `bound` behind to bound + 1 ahead
    assert max(server.gradients) - min(server.gradients) <= bound + 1


# ---------------------------------------------------------------------- bytes
@pytest.mark.parametrize(("servers", "workers"), [(1, 1), (1, 4), (2, 4), (4, 4)])
@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_bytes_in_and_out_of_a_server_are_counted(mode: str, servers: int, workers: int) -> None:
    records = on_ranks(servers + workers, servers=servers, workers=workers, gradients=3 * workers, mode=mode)
    whole = 4 * PARAMETERS
    assert sum(record.bytes_out for record in records[:servers]) == 3 * workers * whole
    assert sum(record.bytes_in for record in records[:servers]) == 3 * workers * whole
    for server in records[:servers]:  # the formula: n/s bytes each way for every gradient
        assert server.bytes_in == server.bytes_out == 4 * server.parameters.numel() * 3 * workers
        assert abs(server.bytes_in - 3 * workers * whole / servers) <= 3 * workers * 4
    for worker in records[servers:]:
        assert worker.bytes_in == worker.bytes_out == whole * worker.gradients[0]


# ---------------------------------------------------------------------- simulated time
def simulated(seconds: list[float], gradients: int = 24, **arguments: Any) -> Record:
    return simulate(small_model(), loss_of(), gradients, LR, seconds, evaluate=whole_loss, **arguments)


def test_the_simulation_gives_the_numbers_of_the_synchronous_ranks() -> None:
    real, model = on_ranks(4, gradients=12)[0], simulated([1.0, 1.0, 5.0], 12)
    assert torch.equal(real.parameters, model.parameters)
    assert model.seconds == 4 * 5.0
    assert (model.bytes_in, model.bytes_out) == (real.bytes_in, real.bytes_out)


def test_simulated_times_counted_by_hand() -> None:
    # One worker at 1 s, one at 3 s, and 8 gradients. Nobody waits: the quick one pulls at 0, 1, …, 5, the slow one at 0
    # and 3. That is all 8. The last to come back, at 6, are the slow one's second and the quick one's sixth.
    free = simulated([1.0, 3.0], 8, mode="asynchronous")
    assert (free.seconds, free.gradients) == (6.0, [6, 2])
    assert simulated([1.0, 3.0], 8).seconds == 12.0
    # At most 1 ahead: the quick one pulls at 0 and 1, waits until 3, …
    bounded = simulated([1.0, 3.0], 8, mode="bounded", bound=1)
    assert max(bounded.ahead) == 1
    assert free.seconds < bounded.seconds <= 12.0


def test_equal_workers_in_lockstep_have_the_staleness_of_the_others_before_them() -> None:
    record = simulated([1.0] * 4, 24, mode="asynchronous")
    assert record.staleness == [0, 1, 2, 3] + [3] * 20
    assert simulated([1.0] * 4, 24, mode="bounded", bound=0).staleness == [0, 1, 2, 3] * 6


# ---------------------------------------------------------------------- wrong arguments
def refusal(arguments: dict[str, Any]) -> str:
    try:
        run(arguments)
    except ValueError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"gradients": 4, "mode": "sometimes"}, "mode must be one of synchronous, asynchronous, bounded"),
        ({"gradients": 5}, "5 gradients cannot come from 2 workers in full rounds"),
        ({"gradients": 4, "servers": 3}, "3 servers and 0 workers do not fit into a world of 3 ranks"),
        ({"gradients": 4, "workers": 3}, "1 servers and 3 workers do not fit into a world of 3 ranks"),
    ],
)
def test_wrong_arguments_are_an_error_on_every_rank(arguments: dict[str, Any], sentence: str) -> None:
    found = utils.launch(refusal, arguments, ranks=3, backend="gloo", timeout=240, show_output=False)
    assert all(message.startswith(sentence) for message in found), found
