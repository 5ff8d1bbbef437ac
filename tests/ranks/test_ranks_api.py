"""Ranks from Python: functions, variables, work in the background, and what a function may take."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import pytest
import torch

import utils
from utils import ranks
from utils.ranks import BadRequest, RankError, RankTimeout, World, locate
from utils.ranks.locate import is_readers
from utils.ranks.world import hidden_module


@pytest.fixture(scope="module")
def world():
    with World(2, timeout=60) as world:
        yield world


def test_a_function_runs_on_every_rank_and_its_results_come_in_order(world):
    def work(base, factor=1):
        x = torch.tensor([base + rank]) * factor  # noqa: F821
        dist.all_reduce(x)  # noqa: F821
        return rank, x.item()  # noqa: F821

    assert world.run(work, 1, factor=10) == [(0, 30), (1, 30)]


def test_ranks_without_a_seed_draw_different_numbers():
    """As processes that nobody has forked do. Once numpy was preloaded, its generator was copied as torch's was."""

    def draw():
        import random

        import numpy.random

        return torch.rand(1).item(), numpy.random.rand(), random.random()

    ranks.preload("numpy.random")
    drawn = [*ranks.launch(draw, ranks=2), *ranks.launch(draw, ranks=1)]
    assert [len(set(numbers)) for numbers in zip(*drawn, strict=True)] == [3, 3, 3]


def test_a_function_gets_what_its_caller_names_whatever_the_name(world):
    assert world.run(lambda timeout, ranks, view: (timeout, ranks, view), timeout=1, ranks=2, view=3) == [(1, 2, 3)] * 2


def test_a_function_may_use_a_part_of_torchs_extension_that_cannot_be_imported(world):
    """As ``once_differentiable`` does: torch._C._functions was taken apart, and could not be put together."""

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, upstream):
            return 2 * upstream

    Double.__module__ = Double.backward.__module__ = "__main__"  # as in a notebook

    def work():
        x = torch.ones(1, requires_grad=True)
        Double.apply(x).backward()
        return x.grad.item()

    assert world.run(work) == [2, 2]


def test_a_function_may_use_modules_of_torch_that_have_a_class_of_their_own(world):
    """Pickle knows modules of the usual class only, and ``torch.ops`` and ``torch.backends.cudnn`` are none."""
    work = lambda: (torch.ops.aten.add(torch.ones(()), 1).item(), torch.backends.cudnn.allow_tf32)  # noqa: E731
    work.__module__ = "__main__"  # as in a notebook
    assert world.run(work) == [(2, torch.backends.cudnn.allow_tf32)] * 2


def test_a_function_may_use_one_that_remembers_its_results(world):
    """``functools.cache`` makes an object that has no text of its own, and this one calls itself."""

    @functools.cache
    def fibonacci(n):
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    assert world.run(lambda: (fibonacci(40), fibonacci.cache_info().misses)) == [(102_334_155, 41)] * 2


def test_variables_are_read_and_given_by_name(world):
    world["given"] = {"a": [1, 2]}
    world.run_cell("mine = given['a'][rank]")
    assert world["mine"] == [1, 2]
    assert world["mine * 10"] == [10, 20]
    with pytest.raises(BadRequest, match="'lock' cannot be sent to the ranks"):
        world["lock"] = __import__("threading").Lock()


def test_ranks_live_on_after_a_function_that_fails(world):
    world["kept"] = 5
    with pytest.raises(RankError, match="ZeroDivisionError") as caught:
        world.run(lambda: 1 / 0)
    assert "live on with all their variables" in caught.value.report
    assert world["kept"] == [5, 5]


def test_the_time_out_is_the_worlds():
    with World(1, timeout=1) as world:
        with pytest.raises(RankTimeout, match="did not end within 1 s"):
            world.run(lambda: __import__("time").sleep(1000))
        with pytest.raises(RankTimeout, match="did not end within 1 s"):
            world.run_cell("import time; time.sleep(1000)")


def test_work_in_the_background_is_a_future(world, tmp_path):
    go = tmp_path / "go"

    def work(path):
        import os
        import time

        while not os.path.exists(path):
            time.sleep(0.01)
        return rank  # noqa: F821

    future = world.submit(work, str(go))
    assert not future.done()
    with pytest.raises(BadRequest, match="busy with another cell"):
        world.run_cell("1")
    go.touch()
    assert future.result(60) == [0, 1]
    with pytest.raises(RankError, match="boom"):
        world.submit(lambda: exec("raise ValueError('boom')")).result(60)


def test_work_in_the_background_can_be_interrupted_and_closed(world):
    world["kept"] = 7
    future = world.submit(lambda: __import__("time").sleep(1000))
    while world._flag is None:
        pass
    world.interrupt()
    with pytest.raises(ranks.RanksInterrupted):
        future.result(60)
    assert world["kept"] == [7, 7]
    with World(1) as other:
        future = other.submit(lambda: __import__("time").sleep(1000))
    assert isinstance(future.exception(60), RankError | BadRequest)


def test_two_worlds_work_at_the_same_time(world):
    with World(2) as other:
        futures = [other.submit(lambda: sum(range(10_000_00))) for _ in range(1)]
        assert world.run(lambda: 3) == [3, 3]
        assert futures[0].result(60) == [sum(range(10_000_00))] * 2


def test_a_world_takes_a_function_first(world):
    with pytest.raises(TypeError, match="a function"):
        world.run(3)


def test_what_launch_names_itself_the_function_gets_by_its_place_or_from_partial():
    def work(timeout=1):
        return timeout

    assert utils.launch(functools.partial(work, timeout=5), ranks=1, timeout=50) == [5]
    assert utils.launch(lambda x, ranks=2: (x, ranks), 1, 3, ranks=1) == [(1, 3)]
    assert utils.launch(work, ranks=1) == [1]


def test_exceptions_are_exported():
    for name in ("BadRequest", "RankError", "RankFailure", "RankTimeout", "RanksInterrupted"):
        assert issubclass(getattr(ranks, name), object) and name in ranks.__all__


def test_a_module_of_the_readers_own_with_our_name_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert hidden_module() == ""
    (tmp_path / "utils.py").write_text("mine = 1")
    with World(1) as world:
        assert "The utils.py of this folder has the name of a package that cells on ranks need" in world.note
    (tmp_path / "utils.py").unlink()
    (tmp_path / "utils").mkdir()
    (tmp_path / "utils/__init__.py").touch()
    assert "The utils/ of this folder" in hidden_module()
    (tmp_path / "utils/__init__.py").unlink()
    for name in ("simgpu.py", "checks.py", "lessons/__init__.py", "course.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        assert f"The {name.removesuffix('__init__.py')} of this folder" in hidden_module()
        (tmp_path / name).unlink()


def test_code_of_libraries_is_not_the_readers_wherever_they_are_installed():
    """In a venv that sees the system's packages, torch lies elsewhere than this Python's own packages."""
    theirs = ["/usr/lib/python3/dist-packages/torch/nn.py", "/home/me/.local/lib/python3.12/site-packages/torch/nn.py"]
    mine = ["/home/me/train.py", "<cell 3 on ranks>", "/tmp/ipykernel_7/1.py", "/home/me/my-packages/model.py"]
    assert [is_readers(file) for file in [*theirs, locate.__file__, os.__file__]] == [False] * 4
    assert [is_readers(file) for file in mine] == [True] * 4


def test_preload_and_launch_are_functions_in_either_order():
    code = "from utils.ranks import preload; import utils; print(callable(utils.launch), callable(preload))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split() == ["True"] * 2
