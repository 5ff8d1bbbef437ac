"""``python -m simgpu run``: ordinary scripts as they are, with the times and the memory of those written by hand."""

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import simgpu
from simgpu.command import main
from simgpu.report.steps import Steps

FOLDER = Path(__file__).parents[1] / "support" / "torchrun_scripts"

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(autouse=True)
def _as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The command has a process of its own, elsewhere; what scripts set in torch is put back too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    environment, tf32 = dict(os.environ), torch.backends.cuda.matmul.allow_tf32
    simgpu.uninstall()
    yield
    simgpu.uninstall()
    torch.backends.cuda.matmul.allow_tf32 = tf32
    os.environ.clear()
    os.environ.update(environment)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Steps]:
    """What the command measures."""
    found: list[Steps] = []

    class Kept(Steps):
        def __enter__(self) -> Steps:
            found.append(self)
            return super().__enter__()

    monkeypatch.setattr("simgpu.command.Steps", Kept)
    return found


def unfolded(text: str) -> str:
    return text.replace("\nsimulated:   ", " ")


def by_hand(script: Path) -> Steps:
    """The same program as one writes it for simulated GPUs: other names, and the group is there already."""
    text = script.read_text("utf-8").replace("backends.cuda", "BACKENDS").replace("compile = True", "compile = False")
    text = text.replace("cuda", "simgpu").replace("nccl", "simccl").replace("BACKENDS", "backends.cuda")
    text = re.sub(r"(?m)^( *)(assert|dist\.(init|destroy)_process).*", r"\1pass", text)
    program = compile(text, str(script), "exec")
    with simgpu.one_of(16, "H100", 2) as cluster:
        cluster.unknown = math.nan
        with Steps() as steps:
            exec(program, {"__name__": "__main__"})
    return steps


@pytest.mark.parametrize("name", ["gpt", "gpt, scaled", "sharded", "tensor_parallel", "plain"])
def test_a_script_takes_the_time_and_the_memory_of_the_one_written_by_hand(name, runs, capsys) -> None:
    os.environ["SCALE"] = "bfloat16" if "scaled" in name else "float16"
    script = FOLDER / f"{name.split(',')[0]}.py"
    assert main(["run", "--nodes", "2", "--steps", "0", str(script)]) == 0
    shown = unfolded(capsys.readouterr().out)
    expected = by_hand(script)
    (steps,) = runs
    assert len(steps.ends) > 2 and steps.ends == pytest.approx(expected.ends, rel=1e-9)
    assert steps.memory_at_peak(0) == expected.memory_at_peak(0)
    assert steps.flops == expected.flops > 0
    said = [line for line in shown.splitlines() if line.startswith("simulated: ")]
    assert f"{len(steps.ends)} optimizer steps" in shown and 4 <= len(said) <= 9
    assert ("rank 0 of 16 alone" in shown) == (name != "plain")
    assert not Path("ckpt.pt").exists()


@pytest.mark.parametrize(
    "words", [["first_ddp.py"], ["train.py", "--folder", "here", "--every", "2"]], ids=lambda w: w[0]
)
def test_the_courses_own_scripts_run(words, capsys) -> None:
    assert main(["run", "--steps", "3", "--trace", "step.json", str(SCRIPTS / words[0]), *words[1:]]) == 0
    shown = unfolded(capsys.readouterr().out)
    assert "3 optimizer steps" in shown and "HFU" in shown and "ended after 3" in shown
    assert json.loads(Path("step.json").read_text("utf-8"))["traceEvents"]


def test_a_world_of_one_has_the_cpus_numbers(capsys) -> None:
    script = str(FOLDER / "plain.py")
    assert main(["run", "--gpus-per-node", "1", "--numbers", script]) == 0
    simulated = re.findall("step .*", capsys.readouterr().out)
    simgpu.uninstall()
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert simulated[:3] == done.stdout.splitlines()


def script(text: str) -> str:
    Path("script.py").write_text(text, "utf-8")
    return "script.py"


ASKS = """
import threading, torch
assert torch.cuda.is_available() and torch.cuda.device_count() == 8 and torch.cuda.is_bf16_supported()
assert torch.cuda.get_device_name(0) == "H100 SXM" and torch.cuda.current_device() == 0
x = torch.zeros(3, device="cuda:0")
assert str(x.device) == "cuda:0" and x.is_cuda and isinstance(x.to("cpu", torch.float64), torch.Tensor)
there = []
thread = threading.Thread(target=lambda: there.append(torch.ones(3, device=torch.device("cuda")) + x))
thread.start(); thread.join()
with torch.device("cuda"):
    assert torch.rand(3).is_cuda and torch.nn.Linear(3, 3).weight.is_cuda
torch.set_default_device("cuda"); assert torch.ones(1).is_cuda; torch.set_default_device(None)
assert there[0].is_cuda and torch.ones_like(torch.ones(2), device="cuda").is_cuda and x.new_ones(3).is_cuda
assert torch.rand(3, generator=torch.Generator("cuda").manual_seed(1), device="cuda").cuda().is_cuda
with torch.cuda.stream(torch.cuda.Stream()), torch.cuda.device(0), torch.cuda.amp.autocast():
    square = torch.ones(4, 4).cuda()
    assert torch.is_autocast_enabled("cuda") and (square @ square).dtype is torch.float16
torch.cuda.nvtx.range_push("here"); torch.cuda.nvtx.range_pop()
torch.cuda.empty_cache(); torch.cuda.synchronize("cuda")
assert torch.cuda.memory_allocated("cuda:0") > 0 and torch.cuda.mem_get_info(torch.device("cuda", 0))[1] == 80 * 2**30
model = torch.compile(torch.nn.Linear(2, 2).cuda()); assert model._orig_mod is model
"""


def test_what_programs_ask_of_cuda_is_answered_and_torch_is_as_before_afterwards(capsys) -> None:
    zeros, to = torch.zeros, torch.nn.Module.to
    assert main(["run", script(ASKS)]) == 0, capsys.readouterr()
    shown = unfolded(capsys.readouterr().out)
    assert "torch.compile" in shown and "no optimizer made a step; the whole program takes" in shown
    assert torch.zeros is zeros and torch.nn.Module.to is to and not hasattr(torch.Tensor, "simgpu")


def test_files_say_cuda_or_simgpu(capsys) -> None:
    torch.save({"x": torch.arange(3.0)}, "cpu.pt")
    loads = (
        "import torch\nx = torch.arange(3.0, device='cuda')\ntorch.save(x, 'x.pt')\n"
        "for where in (None, 'cuda:0', torch.device('cuda'), {'cuda:1': 'cuda:0'}, lambda storage, place: storage):\n"
        "    for file in ('x.pt', 'cpu.pt'):\n"
        "        found = torch.load(file, map_location=where)\n"
        "        found = found['x'] if file == 'cpu.pt' else found\n"
        "        print(found.device.type, found.tolist())\n"
    )
    assert main(["run", "--gpus-per-node", "1", "--numbers", script(loads)]) == 0, capsys.readouterr().err
    shown = re.findall(r"(cpu|cuda) \[0.0, 1.0, 2.0\]", capsys.readouterr().out)
    assert shown == ["cuda", "cpu", "cuda", "cuda", "cuda", "cuda", "cuda", "cpu", "cpu", "cpu"]


WRONG = {
    "fails": ("raise ValueError('no')", "ValueError: no"),
    "decides by a number": ("x = torch.ones(2).cuda().sum() * torch.rand(1).cuda()\nif x > 1: pass", "give --numbers"),
    "out of memory": ("torch.ones(10**12, device='cuda')", "out of memory. Tried to allocate"),
    "cannot be simulated": ("torch.ones(2).cuda().set_(torch.ones(2).untyped_storage())", "simulated GPU cannot do"),
}


@pytest.mark.parametrize(("text", "sentence"), WRONG.values(), ids=WRONG)
def test_a_script_that_fails_shows_its_own_traceback(text, sentence, capsys) -> None:
    assert main(["run", script(f"import torch\n{text}\n")]) == 1
    shown = capsys.readouterr()
    assert sentence in shown.err and "/simgpu/" not in shown.err and "runpy" not in shown.err
    assert 'script.py", line' in shown.err and "after 0 optimizer steps: what follows" in unfolded(shown.out)


WORDS = {
    "unknown GPU": (["--gpu", "H10"], "Did you mean 'H100 SXM'"),
    "no such script": (["nowhere.py"], "there is no script nowhere.py"),
    "too many processes": (["--nodes", "16", "--ranks", "all"], "64 at most"),
    "numbers of one": (["--ranks", "one", "--numbers"], "with --numbers say --ranks all"),
    "no nodes": (["--nodes", "0"], "must be at least 1"),
}


@pytest.mark.parametrize(("words", "sentence"), WORDS.values(), ids=WORDS)
def test_a_wrong_word_gets_a_sentence(words, sentence, capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["run", *words, *([] if "nowhere.py" in words else [script("")])])
    assert sentence in capsys.readouterr().err


def test_the_scripts_own_words_and_its_exit_code_are_its_own(capsys) -> None:
    assert main(["run", script("import sys; print(sys.argv); sys.exit(3)"), "--n", "3", "--steps", "1"]) == 3
    assert "['script.py', '--n', '3', '--steps', '1']" in capsys.readouterr().out


@pytest.mark.extras
def test_the_command_in_a_process_of_its_own_beside_a_module_called_utils() -> None:
    Path("utils.py").write_text("number = 17\n", "utf-8")
    command = [
        sys.executable,
        "-P",
        "-m",
        "simgpu",
        "run",
        script("from utils import number; print(number); exit('the end')"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout.startswith("17\nsimulated: ") and done.stderr == "the end\n"


def test_the_known_gpus_are_listed(capsys) -> None:
    assert main(["gpus"]) == 0
    shown = unfolded(capsys.readouterr().out)
    assert "H100 SXM" in shown and "990 TFLOP/s" in shown and "InfiniBand NDR" in shown


@pytest.mark.extras
@pytest.mark.parametrize("numbers", [True, False])
def test_all_ranks_run_as_processes_and_the_first_that_fails_is_shown(numbers) -> None:
    begin = [sys.executable, "-m", "simgpu", "run", "--gpus-per-node", "2", "--nodes", "2"]
    begin += ["--numbers"] if numbers else ["--ranks", "all"]
    done = subprocess.run([*begin, str(FOLDER / "sharded.py")], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert ("loss nan" in done.stdout) != numbers and done.stdout.count("epoch 0") == 1
    assert "4 ranks, of which rank 0" in unfolded(done.stdout) and "peak memory of the 4 ranks" in done.stdout
    if numbers:
        return
    text = "import torch.distributed as d; d.init_process_group(); d.get_rank() == 3 and 1 / 0; d.barrier()"
    done = subprocess.run([*begin, script(text)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 1 and done.stderr.count("Traceback") == 1 and "ZeroDivisionError" in done.stderr


def test_device_is_simulated_with_a_cluster_and_real_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert simgpu.device(1) == torch.device("cuda", 1)
    with pytest.raises(RuntimeError, match=r"no GPU 2: no simulated cluster.*has 2 real GPUs"):
        simgpu.device(2)
    with simgpu.cluster(gpus_per_node=4):
        assert simgpu.device(1) == torch.device("simgpu", 1)  # also where there are real ones
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            simgpu.device(4)
    assert simgpu.device(0) == torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(RuntimeError, match=r"simgpu.cluster\(gpus_per_node=4\) makes one.*has no real GPU"):
        simgpu.device(0)
