"""A Ray of this machine's cores alone, for a notebook, a script or a test, that leaves nothing behind.

``start`` and ``stop``: one Ray serves many cells; ``private`` is for whoever wants to call ``ray.init`` with one's own
hands. All of its processes listen on loopback only, nothing is reported to anybody, and no dashboard is started.
Nothing of Ray is imported before ``start`` or ``private``.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import psutil

from lessons.launchers.processes import kill_all

#: Environment variables that a Ray is started and joined with.
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no report to Ray's makers
    "RAY_AUTH_MODE": "disabled",  # else a token is written into the home folder
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # one machine: 127.0.0.1 everywhere, also on Linux
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # what comes in Ray's next versions; without it, a warning
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # trials keep the working folder
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # no CSV, JSON and TensorBoard files for each trial
    "RAY_AIR_NEW_OUTPUT": "0",  # then `RunConfig(verbose=0)` prints nothing at all
    "AUTOSCALER_METRIC_PORT": "0",  # a free port: with a fixed one, two Rays on a machine would clash
    "RAY_gcs_server_port_wait_time_s": "180",  # seconds; the usual 30 are few on a machine that is very busy
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "180",  # the same, for 60
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # and not 2: so soon it notices that a worker has died or is done
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # a process more for each attempt; nobody takes this machine away
}
_LONGEST_TEMPORARY = 20  # characters: a socket's whole path may have 107 (Linux) or 103 (macOS), and Ray adds about 70
_PATIENCE = 90  # seconds for a node to start
_ATTEMPTS = 2  # on a machine that is very busy its daemon may even die at the start
_OBJECT_STORE = 80_000_000  # bytes; Ray refuses fewer than 75 MB
# Daemons that nobody here asks for anything (the autoscaler, the sender of logs, the dashboard). Each is a Python
# process with all of Ray; a start without them takes half of the time. No setting of Ray leaves them out.
_NOT_NEEDED = ("start_monitor", "start_log_monitor", "start_api_server")
_NOBODY = "127.0.0.1:9"  # a port on which nobody listens


class Here(NamedTuple):
    """A running Ray.

    Attributes:
        address: for another process: ``ray.init(address=…)``, or the environment variable ``RAY_ADDRESS``.
        storage: a folder of its own for experiments: ``RunConfig(storage_path=str(here.storage))``.
    """

    address: str
    storage: Path


_folder: Path | None = None


def start(cpus: int = 2) -> Here:
    """Start a Ray on this machine and connect this process to it. One that ``start`` has made before is stopped.

    Args:
        cpus: how many tasks that need one core each run at the same time. It may be more than the machine has.

    Raises:
        ModuleNotFoundError: Ray is not installed: ``make frameworks``.
        RuntimeError: this process is connected to a Ray that was not started here.
    """
    for attempt in range(_ATTEMPTS):
        try:
            with private() as settings, redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                import ray
                from ray._private.ray_constants import DASHBOARD_ADDRESS, KV_NAMESPACE_DASHBOARD
                from ray.experimental.internal_kv import _internal_kv_put

                context = ray.init(num_cpus=cpus, **settings)
                # (Without an address of a dashboard, which then refuses, a Ray Train waits 12 seconds at its end.)
                _internal_kv_put(DASHBOARD_ADDRESS, _NOBODY, namespace=KV_NAMESPACE_DASHBOARD)
            break
        except BaseException as error:
            if attempt == _ATTEMPTS - 1 or "timed out during startup" not in str(error):
                raise
    return Here(context.address_info["address"], storage())


@contextmanager
def private() -> Iterator[dict[str, Any]]:
    """Arguments for one ``ray.init``, called inside: a Ray of this machine alone that ``stop`` ends and clears away.

    Raises:
        ModuleNotFoundError: Ray is not installed: ``make frameworks``.
        RuntimeError: this process is connected to a Ray that was not started here.
    """
    global _folder
    stop()
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        raise RuntimeError("this process is already connected to a Ray that was not started here: ray.shutdown() first")
    os.environ.update(SETTINGS)  # before the import: Ray reads some of them only then
    from ray._private import ray_constants
    from ray._private.node import Node

    ray_constants.ENABLE_RAY_CLUSTER = False  # (if somebody has imported Ray earlier)
    atexit.register(stop)
    _folder = Path(tempfile.mkdtemp(prefix="ray-", dir=_short_temporary_folder()))
    try:
        with _one_at_a_time(), _patience(), ExitStack() as changes:
            for name in _NOT_NEEDED:
                changes.enter_context(patch.object(Node, name, lambda node, **_: setattr(node, "_webui_url", "")))
            yield {
                "address": "local",
                "num_gpus": 0,
                "include_dashboard": False,
                "log_to_driver": False,
                "logging_level": logging.ERROR,
                "object_store_memory": _OBJECT_STORE,
                "_temp_dir": str(_folder),
            }
    except BaseException:
        stop()
        raise
    storage().mkdir()


def storage() -> Path:
    """The folder for experiments of the Ray that was started here: ``RunConfig(storage_path=str(storage()))``."""
    if _folder is None:
        raise RuntimeError("there is no Ray: ray_here.start() first")
    return _folder / "storage"


def add_node(cpus: int = 1) -> None:
    """Add a node to the Ray that ``start`` has made: a second daemon on this machine, as if it were another machine.

    Args:
        cpus: how many cores Ray believes it to have.
    """
    if _folder is None:
        raise RuntimeError("there is no Ray to add a node to: ray_here.start() first")
    import ray
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    settings = RayParams(
        gcs_address=ray.get_runtime_context().gcs_address,
        node_ip_address="127.0.0.1",
        num_cpus=cpus,
        num_gpus=0,
        include_log_monitor=False,
        object_store_memory=_OBJECT_STORE,
        temp_dir=str(_folder),
    )
    with _patience():
        Node(settings, head=False, shutdown_at_exit=False, spawn_reaper=False)


def stop() -> None:
    """Stop the Ray that ``start`` or ``private`` has made: its processes end, its folder goes."""
    global _folder
    if _folder is None:
        return
    import ray

    folder, _folder = _folder, None
    atexit.unregister(stop)
    started = _processes(folder)
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        ray.shutdown()
    kill_all(lambda: [process for process in started if process.is_running()])  # agents would take seconds to notice
    deadline = time.monotonic() + _PATIENCE
    while folder.exists() and time.monotonic() < deadline:  # a process that is ending may still write there
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.02)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Rays that start at the same moment on one machine choose the same free ports, and none of them comes up."""
    with open(Path(tempfile.gettempdir(), f"ray-starts-{os.getuid()}.lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # whoever has it and dies lets it go
        yield


@contextmanager
def _patience() -> Iterator[None]:
    """Ray gives a new node 30 seconds to register and has no setting for it: few on a machine that is very busy."""
    from ray._private import services

    impatient = services.get_node

    def get_node(gcs_address: str, node_id: str) -> Any:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return impatient(gcs_address, node_id)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    with patch.object(services, "get_node", get_node):
        yield


def _processes(folder: Path) -> list[psutil.Process]:
    """Ray's daemons name its folder in their command lines; agents and workers are children of theirs."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if str(folder) in " ".join(child.cmdline()):
                found += [child, *child.children(recursive=True)]
    return found


def _short_temporary_folder() -> str:
    usual = tempfile.gettempdir()
    return usual if len(usual) <= _LONGEST_TEMPORARY or not Path("/tmp").is_dir() else "/tmp"
