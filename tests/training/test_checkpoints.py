"""Checkpoints: a kill at any moment leaves a good one, errors are one sentence, and every rank gets its state back."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import pickle
import random
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy
import pytest
import torch
from torch import nn

import utils
from utils.training import checkpoints
from utils.training.checkpoints import CheckpointError, Checkpoints

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the functions here run on ranks

SIZE = 50_000  # numbers in a state: 200 kB


def state(value: float) -> dict[str, Any]:
    return {"step": int(value), "w": torch.full((SIZE,), float(value))}


def is_whole(found: dict[str, Any]) -> bool:
    return bool((found["w"] == found["step"]).all()) and found["w"].shape == (SIZE,)


@contextlib.contextmanager
def largest_file(nbytes: int) -> Iterator[None]:
    """Writing beyond so many bytes fails with EFBIG, as it fails with ENOSPC on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# ---------------------------------------------------------------------- one file
def saves_until_it_is_killed(path: Path, seconds: float) -> None:
    """A byte goes to a second file for each checkpoint that is promised to be there."""
    promises = os.open(path.with_suffix(".promised"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for step in itertools.count(1):
        checkpoints.save({"step": step, "w": torch.full((SIZE,), float(step))}, path)
        os.write(promises, b".")
        if step == 1:
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()


def test_a_kill_at_a_random_moment_leaves_a_whole_checkpoint_that_is_no_older_than_the_last_promise(
    tmp_path: Path,
) -> None:
    file, moments = tmp_path / "a.pt", random.Random(0)
    for _ in range(5):
        with pytest.raises(RuntimeError, match="SIGKILL"):
            utils.launch(saves_until_it_is_killed, file, moments.uniform(0, 0.1), ranks=1, show_output=False)
        found = checkpoints.load(file)
        assert is_whole(found) and found["step"] >= file.with_suffix(".promised").stat().st_size >= 1


def dies_before(path: Path, call: str) -> None:
    setattr(os, call, lambda *args: os.kill(os.getpid(), signal.SIGKILL))
    checkpoints.save(state(2), path)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_kill_between_two_steps_of_saving_leaves_the_former_checkpoint(tmp_path: Path, call: str) -> None:
    file = tmp_path / "a.pt"
    checkpoints.save(state(1), file)
    with pytest.raises(RuntimeError, match="SIGKILL"):
        utils.launch(dies_before, file, call, ranks=1, show_output=False)
    assert checkpoints.load(file)["step"] == 1


def test_the_bytes_are_on_the_disk_before_the_name_and_the_name_before_save_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, fsync, replace = [], os.fsync, os.replace

    def seen_fsync(descriptor: int) -> None:
        done.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "bytes")
        fsync(descriptor)

    def seen_replace(source: Path, target: Path) -> None:
        assert Path(source).parent == Path(target).parent  # else it is no single step
        done.append("name")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", seen_fsync)
    monkeypatch.setattr(os, "replace", seen_replace)
    checkpoints.save(state(1), tmp_path / "a.pt")
    assert done == ["bytes", "name", "folder"]


def test_a_full_disk_is_one_sentence_and_the_former_checkpoint_is_untouched(tmp_path: Path) -> None:
    file = tmp_path / "a.pt"
    checkpoints.save(state(1), file)
    before = file.read_bytes()
    with largest_file(50_000), pytest.raises(CheckpointError) as caught:
        checkpoints.save(state(2), file)
    text = os.strerror(errno.EFBIG)
    assert str(caught.value) == f"a.pt could not be written ({text}); what was saved before is untouched"
    assert file.read_bytes() == before and os.listdir(tmp_path) == ["a.pt"]


def test_a_folder_that_does_not_exist_is_named_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"^there is no folder \S+runs: make it first, or correct its name$"):
        checkpoints.save(state(1), tmp_path / "runs" / "a.pt")
    with pytest.raises(CheckpointError, match="there is no folder"):
        Checkpoints(tmp_path / "runs").resume({"model": nn.Linear(1, 1)})
    assert os.listdir(tmp_path) == []


class Stranger:
    def __reduce__(self) -> Any:
        return os.mkdir, ("code of a stranger ran",)


def test_each_unreadable_file_gets_its_own_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoints.save(state(1), "good.pt")
    content = Path("good.pt").read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    torch.save({"x": Stranger()}, "stranger.pt")
    files = {
        "empty.pt": (b"", r"empty.pt \(0 bytes\) was cut off or damaged"),
        "half.pt": (content[: len(content) // 2], r"half.pt \([\d,]+ bytes\) was cut off or damaged"),
        "short.pt": (content[:-1], r"short.pt \([\d,]+ bytes\) was cut off or damaged"),
        "flipped.pt": (bytes(flipped), "flipped.pt is damaged: the bytes of .*data/0 do not give the checksum"),
        "text.pt": (b"buy milk", r"text.pt \(8 bytes\) is not a checkpoint of torch"),
        "pickle.pt": (pickle.dumps({"x": 1}), r"pickle.pt \([\d,]+ bytes\) is not a checkpoint of torch"),
        "stranger.pt": (
            Path("stranger.pt").read_bytes(),
            r"stranger.pt holds more than tensors and plain values \((posix|nt).mkdir\)",
        ),
    }
    for name, (written, sentence) in files.items():
        Path(name).write_bytes(written)
        with pytest.raises(CheckpointError, match=sentence) as caught:
            checkpoints.load(name)
        assert "\n" not in str(caught.value)
    with pytest.raises(CheckpointError, match=r"^there is no checkpoint gone\.pt in "):
        checkpoints.load("gone.pt")
    assert not Path("code of a stranger ran").exists()


# ---------------------------------------------------------------------- a folder of checkpoints
def test_the_last_few_are_kept_and_left_over_pieces_go(tmp_path: Path) -> None:
    store, model = Checkpoints(tmp_path, keep=2), nn.Linear(2, 1)
    (tmp_path / ".step-00000007.pt.tmp").write_bytes(b"half of something")
    (tmp_path / "notes.txt").write_text("mine")
    for step in (5, 10, 15):
        store.save(step, {"model": model})
    assert store.steps() == [10, 15]
    assert sorted(os.listdir(tmp_path)) == ["notes.txt", "step-00000010.pt", "step-00000015.pt"]
    store.save(3, {"model": model})  # somebody went back: what was just saved stays
    assert store.steps() == [3, 15]
    one = Checkpoints(tmp_path, keep=1)
    one.save(20, {"model": model})
    assert one.steps() == [20]
    with pytest.raises(ValueError, match="keep must be at least 1"):
        Checkpoints(tmp_path, keep=0)


def test_resume_takes_the_latest_good_one_and_never_begins_anew_in_silence(tmp_path: Path) -> None:
    store, model = Checkpoints(tmp_path), nn.Linear(2, 1)
    assert store.resume({"model": model}) == 0
    for step in (5, 10):
        nn.init.constant_(model.weight, step)
        store.save(step, {"model": model})
    os.truncate(store.path(10), 700)
    assert store.resume({"model": model}) == 5 and (model.weight == 5).all()
    assert store.skipped == ["step-00000010.pt (700 bytes) was cut off or damaged"]
    os.truncate(store.path(5), 0)
    with pytest.raises(CheckpointError, match=r"^none of the 2 checkpoints in .* can be read: step-00000010\.pt"):
        store.resume({"model": model})
    checkpoints.save({"weights": torch.ones(1)}, store.path(15))
    with pytest.raises(CheckpointError, match=r"^step-00000015\.pt was not written by Checkpoints\.save$"):
        store.resume({"model": model})


def parts(width: int = 3, **others: Any) -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(2, width), nn.Linear(width, 1))
    return {"model": model, "optimizer": torch.optim.Adam(model.parameters()), **others}


def test_a_checkpoint_of_something_else_is_refused_before_anything_changes(tmp_path: Path) -> None:
    store, right = Checkpoints(tmp_path), parts()
    store.save(5, right)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    one_layer = nn.Linear(2, 3)
    wrong = {
        r"is of another model: 0\.weight has the shape \[3, 2\] in it and \[4, 2\] here": parts(width=4),
        r"is of another model: bias is missing in it, and 1 more": right | {"model": one_layer},
        r"is of another optimizer: it has \[4\] parameters in its groups, and here are \[1\]": right
        | {"optimizer": torch.optim.SGD([right["model"][0].weight])},
        r"holds model, optimizer, and what is to be loaded is model, optimizer, scaler": parts(scaler=scaler),
    }
    for sentence, others in wrong.items():
        before = [value.clone() for value in others["model"].state_dict().values()]
        with pytest.raises(CheckpointError, match=rf"^step-00000005\.pt {sentence}$"):
            store.resume(others)
        assert all(map(torch.equal, before, others["model"].state_dict().values()))
    store.save(6, parts(scaler=scaler))
    with pytest.raises(CheckpointError, match=r"^step-00000006\.pt holds another kind of scaler: .*empty"):
        store.resume(parts(scaler=torch.amp.GradScaler("cpu")))


# ---------------------------------------------------------------------- ranks
def everything(folder: Path) -> dict[str, Any]:
    """Several situations in one world of ranks; each rank says what it found."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    rank, found = dist.get_rank(), {}
    store, model = Checkpoints(folder), DistributedDataParallel(nn.Linear(2, 1))
    for seed in (random.seed, numpy.random.seed, torch.manual_seed):
        seed(rank)
    store.save(4, {"model": model})
    found["file is there when save returns"] = store.path(4).is_file()
    drawn = [random.random(), numpy.random.rand(), torch.rand(1).item()]
    for seed in (random.seed, numpy.random.seed, torch.manual_seed):
        seed(99)
    saved = model.module.weight.clone()
    nn.init.zeros_(model.module.weight)
    found["step"] = store.resume({"model": model})
    found["weight"] = torch.equal(model.module.weight, saved)
    found["random"] = drawn == [random.random(), numpy.random.rand(), torch.rand(1).item()]
    found["drawn"] = drawn[2]

    def refused(action: Any, *args: Any) -> str:
        try:
            action(*args)
        except CheckpointError as error:
            return str(error)
        return "nothing was raised"

    if rank == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    found["full disk"] = refused(store.save, 8, {"model": model})
    found["one rank differs"] = refused(store.resume, {"model": nn.Linear(2 + (rank == 1), 1)})
    found["a bug on rank 0"] = refused(store.save, 8, {"model": "no model"})
    return found


def with_another_world(folder: Path) -> tuple[str, int, bool]:
    store, model = Checkpoints(folder), nn.Linear(2, 1)
    torch.manual_seed(77)
    before = torch.get_rng_state()
    try:
        store.resume({"model": model})
        refused = "nothing was raised"
    except CheckpointError as error:
        refused = str(error)
    return refused, store.resume({"model": model}, exact=False), torch.equal(before, torch.get_rng_state())


def test_on_ranks_each_gets_its_random_numbers_back_and_an_error_of_one_is_an_error_of_all(tmp_path: Path) -> None:
    ranks = utils.launch(everything, tmp_path, ranks=3, backend="gloo", show_output=False)
    for found in ranks:
        assert found["file is there when save returns"] and found["step"] == 4 and found["weight"] and found["random"]
        assert found["full disk"].startswith("step-00000008.pt could not be written (File too large)")
        assert found["one rank differs"].startswith("step-00000004.pt is of another model: weight has the shape")
        assert found["a bug on rank 0"].startswith("rank 0 failed with AttributeError")
    assert len({found["drawn"] for found in ranks}) == 3
    saved = checkpoints.load(tmp_path / "step-00000004.pt")
    assert list(saved["parts"]["model"]) == ["weight", "bias"] and len(saved["random"]) == 3

    for refused, step, untouched in utils.launch(
        with_another_world, tmp_path, ranks=2, backend="gloo", show_output=False
    ):
        assert refused == (
            "step-00000004.pt is of a training on 3 ranks, and here are 2: without the same ranks no resume is exact"
        )
        assert step == 4 and untouched


def resumes_without_sending_the_state(folder: Path) -> dict[str, Any]:
    """A state of 1.2 MB: what goes between the ranks, and whether it is the rank's own when the file has changed."""
    import torch.distributed as dist

    rank, found, sent = dist.get_rank(), {}, []
    model = nn.Linear(1000, 100)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1000)).sum().backward()
    optimizer.step()
    parts, store = {"model": model, "optimizer": optimizer}, Checkpoints(folder)
    store.save(1, parts)
    broadcast, gather = dist.broadcast, dist.all_gather
    dist.distributed_c10d.broadcast = lambda tensor, *a, **k: (sent.append(tensor.nbytes), broadcast(tensor, *a, **k))[
        1
    ]
    dist.distributed_c10d.all_gather = lambda out, one, *a, **k: (sent.append(one.nbytes), gather(out, one, *a, **k))[1]
    found["step"], found["sent"] = store.resume(parts), sum(sent)
    dist.barrier()
    if rank == 0:
        os.truncate(store.path(1), 0)  # a tensor that is still the file would end the process (SIGBUS)
    dist.barrier()
    optimizer.step()
    found["mean"] = optimizer.state[model.weight]["exp_avg"].shape

    store.save(3, parts)
    (folder / "empty").mkdir(exist_ok=True)
    if rank == 1:
        store.folder = folder / "empty"
    with pytest.raises(CheckpointError) as refused:
        store.resume(parts)
    found["refused"] = str(refused.value)
    return found


def test_every_rank_reads_the_file_itself_so_that_no_state_goes_through_the_process_group(tmp_path: Path) -> None:
    for found in utils.launch(resumes_without_sending_the_state, tmp_path, ranks=2, backend="gloo", show_output=False):
        assert found["step"] == 1 and found["mean"] == (100, 1000)
        assert 0 < found["sent"] < 50_000  # random states and numbers; the parameters alone are 400 kB
        assert found["refused"] == (
            "step-00000003.pt can be read on rank 0, and not on rank 1: all nodes must share the disk with the folder"
        )
