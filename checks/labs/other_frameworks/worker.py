"""One worker of this lab, in a process that mpiexec or horovodrun has started, or that belongs to TensorFlow."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from checks.engine.inside import Outcome, open_answer
from checks.engine.verdicts import NotStarted, Wrong
from checks.labs.other_frameworks.launching import MIRRORED, Facts
from checks.labs.other_frameworks.training_tasks import HorovodTask, TensorFlowTask
from utils.ranks.ports import free_ports

LINGER = 10.0  # seconds
Call = Callable[..., Any]


def _given() -> list[dict[str, Any]]:
    return json.loads(Path(sys.argv[1], "given.json").read_text(encoding="utf-8"))


def horovod() -> None:
    """Worker of horovodrun."""
    import horovod.torch as hvd

    _wait_asleep()
    number = int(os.environ["HOROVOD_RANK"])
    # Each worker on a node of its own: local numbers are then no numbers of workers.
    os.environ |= {"HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "1", "HOROVOD_CROSS_RANK": f"{number}",
                   "HOROVOD_CROSS_SIZE": os.environ["HOROVOD_SIZE"]}  # fmt: skip
    name, (case,) = f"worker {number}", _given()
    task = HorovodTask(sys.argv[1], name, case, number)
    with _ending(name) as (call, facts), _collectives(hvd) as counts:
        call(task)
        facts |= task.facts() | counts


def _wait_asleep() -> None:
    """Horovod's workers spin while they wait for a tensor; asleep, those that wait for ever are told from busy ones."""
    from horovod.torch import mpi_lib_v2 as library

    spin = library.horovod_torch_wait_and_clear

    def wait(handle: int) -> None:
        while not library.horovod_torch_poll(handle):
            time.sleep(0.002)
        spin(handle)

    library.horovod_torch_wait_and_clear = wait


def tensorflow() -> None:
    """All of TensorFlow's workers: it is imported once, which takes longest, and then there are copies of this process.

    That is safe as long as nothing of TensorFlow has been used before the copies are made.
    """
    import tensorflow as tf

    several, mirrored = _given()
    workers = several["ranks"]
    ports = free_ports(workers)
    children = []
    for number in range(workers + 1):
        if (child := os.fork()) == 0:
            with contextlib.suppress(BaseException):
                _mirrored(tf, mirrored) if number == workers else _one_of_several(tf, several, number, ports)
                _wait_for_the_others(workers)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def _mirrored(tf: Any, case: dict[str, Any]) -> None:
    replicas, name = case["ranks"], MIRRORED
    with _ending(name) as (call, facts):
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
        task = TensorFlowTask(sys.argv[1], name, case, 0)
        call(tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(replicas)]), task)
        facts |= task.facts()


def _one_of_several(tf: Any, case: dict[str, Any], number: int, ports: list[int]) -> None:
    name = f"worker {number}"
    with _ending(name) as (call, facts):
        cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": number}})
        task = TensorFlowTask(sys.argv[1], name, case, number)
        call(tf.distribute.MultiWorkerMirroredStrategy(), task)
        facts |= task.facts()


def _wait_for_the_others(workers: int) -> None:
    """The other worker may still be fetching its part of the last collective from this process."""
    latest = time.monotonic() + LINGER
    while len(list(Path(sys.argv[1]).glob("end.*.json"))) <= workers and time.monotonic() < latest:
        time.sleep(0.02)


@contextlib.contextmanager
def _ending(name: str) -> Iterator[tuple[Call, Facts]]:
    """Give the learner's function, and write down how this worker ended: facts, or what went wrong."""
    folder, facts = Path(sys.argv[1]), {}
    record = {"facts": facts}
    try:
        answer_name, sealed = json.loads(Path(folder, "answer.json").read_text(encoding="utf-8"))
        answer = _open(answer_name, sealed)

        def call(*arguments: Any) -> Any:
            Path(folder, f"begun.{name}").touch()
            with contextlib.redirect_stdout(io.StringIO()):
                try:
                    return answer.function(*arguments)
                except BaseException as error:
                    raise answer.outcome_of(error) from error

        yield call, facts
    except (Outcome, NotStarted, Wrong) as end:
        record = {"outcome": end.record}
    half = Path(folder, f"half.{name}")
    half.write_text(json.dumps(record), encoding="utf-8")
    half.replace(folder / f"end.{name}.json")


def _open(name: str, sealed: dict[str, Any]) -> Any:
    from checks.engine.answers import Answer

    answer = Answer.from_json(name, sealed)
    return open_answer(answer.name, answer.payload, answer.sources)


@contextlib.contextmanager
def _collectives(hvd: Any) -> Iterator[dict[str, int]]:
    """Count what Horovod is asked for: tensors to reduce (and their elements), tensors to broadcast."""
    from horovod.torch import mpi_ops

    counts = {"reduced": 0, "broadcast": 0, "elements": 0}
    kinds = ("allreduce", "grouped_allreduce", "allgather", "grouped_allgather", "broadcast",
             "reducescatter", "grouped_reducescatter")  # fmt: skip
    before = {f"_{kind}_async": getattr(mpi_ops, f"_{kind}_async") for kind in kinds}

    def counting(name: str, kind: str) -> Call:
        def counted(tensors: Any, *arguments: Any, **named: Any) -> Any:
            every = tensors if isinstance(tensors, list | tuple) else [tensors]
            counts[kind] += len(every)
            counts["elements"] += sum(tensor.numel() for tensor in every) if kind == "reduced" else 0
            return before[name](tensors, *arguments, **named)

        return counted

    for name in before:
        setattr(mpi_ops, name, counting(name, "broadcast" if "broadcast" in name else "reduced"))
    try:
        yield counts
    finally:
        for name, function in before.items():
            setattr(mpi_ops, name, function)
