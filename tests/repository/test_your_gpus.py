"""``make test-gpu`` and your_gpus.ipynb where no GPU is: faked counts, gloo in place of NCCL."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import gpu
import nbformat
import notebook_rules
import pytest
import simgpu_vs_hardware as report
import steps
import torch
import your_gpus
from real_gpus import GPUS, needs_gpus

from utils.hardware.nvml import UsableGpus

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "your_gpus.ipynb"
H100 = {"gpu": "NVIDIA H100 80GB HBM3", "memory_bytes": 85_000_000_000, "half": "bf16"}
T4 = {"gpu": "Tesla T4", "memory_bytes": 15_800_000_000, "half": "fp16"}
FACTS = {"torch": "2.13.0", "nccl": "2.29.3", "cuda": "13.0", "links": "NVLink, 18 links"}


# --- make test-gpu ------------------------------------------------------------------------------------------


@pytest.mark.skipif(GPUS > 0, reason="for machines without a GPU")
def test_without_a_gpu_it_says_so_and_runs_nothing() -> None:
    done = subprocess.run([sys.executable, "benchmarks/gpu.py"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no GPU that torch can use" in done.stderr and "make test" in done.stderr


def test_it_runs_every_test_that_needs_a_gpu_and_every_notebook_of_the_core() -> None:
    tests, measured, notebooks = gpu.parts()
    assert tests.command[-2:] == ("-m", "gpu")
    marked = {path for path in ROOT.glob("tests/**/test_*.py") if "real_gpus import" in path.read_text()}
    assert {ROOT / one for one in tests.command if one.startswith("tests/")} == marked != set()
    assert (ROOT / measured.command[1]).exists()
    there = {path.name for path in ROOT.glob("notebooks/*.ipynb")}
    left_out = there - {Path(one).name for one in notebooks.command}
    assert left_out and all("frameworks" in name or "ray" in name or "tuning" in name for name in left_out)
    assert sum(part.limit_s for part in (tests, measured, notebooks)) <= 600, "ten minutes"


def test_a_part_that_fails_or_hangs_is_reported_and_ended() -> None:
    def part(source: str, limit_s: float = 60.0):
        return gpu.run(gpu.Part("a part", (sys.executable, "-c", source), limit_s))

    assert part("print('figures')")[0].startswith("passed") and part("print('figures')")[1] == "figures"
    assert part("import sys; print('why'); sys.exit(3)")[0].startswith("FAILED with code 3")
    ending, text = part("import time; print('begun', flush=True); time.sleep(1000)", 3.0)
    assert ending.startswith("NOT FINISHED after 3 s") and text == "begun"


def test_where_there_are_gpus_the_file_says_how_each_part_ended(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    monkeypatch.setattr(gpu, "count_gpus", lambda: UsableGpus(2))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(your_gpus, "look", lambda: {"gpus": 2, **H100, **FACTS})
    file = tmp_path / "your_gpus.json"
    writes = f"open({str(file)!r}, 'w').write('{{\"form\": 1}}')"
    fails = "import sys; print('FAILED tests/a.py::test_b - why'); sys.exit(1)"
    for sources, code in (([writes], 0), ([writes, fails], 1), ([fails], 1)):
        parts = [gpu.Part(f"Part {i}", (sys.executable, "-c", source), 60.0) for i, source in enumerate(sources)]
        monkeypatch.setattr(gpu, "parts", lambda parts=parts: parts)
        assert gpu.main() == code
        found = json.loads(file.read_text())
        assert found["form"] == 1 and len(found["tests"]) == len(sources)
        if code:
            *_, (ending, failed) = found["tests"].values()
            assert ending.startswith("FAILED with code 1") and failed == "tests/a.py::test_b"


# --- What is decided by the machine -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "kind", "large", "half"),
    [(0, {}, "tiny GPT", "fp32"), (1, T4, "GPT 350M", "fp16"), (2, T4, "GPT 350M", "fp16")]
    + [(count, H100, "GPT 1.3B", "bf16") for count in (1, 2, 8)],
)
def test_five_programs_fit_the_machine(gpus, kind, large, half) -> None:
    machine = {"gpus": gpus, **kind}
    one, two, three, ddp, fsdp = your_gpus.programs(machine)
    assert [each.gpus for each in (one, two, three)] == [1, 1, 1]
    assert {each.gpus for each in (ddp, fsdp)} == {gpus or 2} and (ddp.parallel, fsdp.parallel) == ("DDP", "FSDP2")
    assert three.model == fsdp.model == large and {each.dtype for each in (two, three, ddp, fsdp)} == {half}
    assert fsdp.name == f"{large}, {half}, checkpointing, FSDP2"
    # With one GPU or none two ranks on the CPU speak over gloo.
    assert (your_gpus.ranks(machine), your_gpus.backend(machine)) == (max(2, gpus), "nccl" if gpus > 1 else "gloo")
    assert max(your_gpus.sizes(machine)) == (2**30 if gpus > 1 else 2**18)


@pytest.mark.parametrize("count", [0, 1, 2, 8])
def test_the_machine_is_looked_at_on_a_rank_and_not_here(count, monkeypatch) -> None:
    launched = []

    def launch(function, ranks, timeout):
        launched.append((function, ranks))
        return [H100 | {"nccl": "2.29.3"}]

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(your_gpus.nvml, "count_gpus", lambda: UsableGpus(count, "" if count else "No driver."))
    monkeypatch.setattr(your_gpus.nvml, "interconnect", lambda: {(0, 1): "SYS"})
    monkeypatch.setattr(your_gpus, "_limits", lambda: {"driver": "580.1", "power_limit_w": 700})
    monkeypatch.setattr(your_gpus.utils, "launch", launch)
    machine = your_gpus.look()
    assert machine["gpus"] == count and launched == ([(your_gpus.rates, 1)] if count else [])
    said = your_gpus.heading(machine)
    if count:
        assert said.startswith(f"{count} × NVIDIA H100") and ("PCIe" in said) is (count > 1)
    else:
        assert "REHEARSAL" in said and "No driver." in said


def test_where_nothing_can_be_simulated_a_sentence_says_so_and_the_rest_goes_on() -> None:
    said = steps.predict({"gpu": "X1"}, [], [], 1)
    assert isinstance(said, str) and "no GPU called 'X1'" in said
    row = {"program": vars(steps.Program("tiny GPT", 4, "fp32")), "seconds": 0.1, "peak_bytes": None}
    found = your_gpus.results({"gpus": 2, **H100}, said, steps=[row])
    assert found["note"].startswith("nothing was simulated") and found["steps"] == [row]
    assert your_gpus.table(found["steps"]).count("–") == 3


# --- The file, and the report over all files ----------------------------------------------------------------


def _measured(**machine) -> dict:
    """A whole file of eight GPUs."""
    about = {"gpus": 8, **H100, **FACTS, **machine}
    programs = your_gpus.programs(about)
    rows = [{"program": vars(each), "seconds": 0.123456789, "peak_bytes": 10**10} for each in programs]
    sizes = your_gpus.sizes(about)
    predicted = {"steps": [{"seconds": 0.1, "peak_bytes": 10**10}] * 5, "all_reduce": [1e-3] * len(sizes)}
    of = {"backend": "nccl", "ranks": 8, "sizes": sizes, "seconds": [2e-3] * len(sizes)}
    late = {"backend": "nccl", "rank": 7, "sleep_s": 0.2, "late_step": 2, "spans": [[(1.234567, 2.345678)] * 5] * 8}
    hang = {"backend": "nccl", "seconds": 10.5, "report": "rank  state\n" * 10}
    return your_gpus.results(about, predicted, steps=rows, all_reduce=of, straggler=late, hang=hang)


def test_a_whole_file_is_small_and_has_no_faults() -> None:
    text = your_gpus.as_text(_measured())
    assert your_gpus.faults(text) == [] and len(text) < your_gpus.MOST_BYTES / 3
    assert json.loads(text)["steps"][0]["seconds"] == 0.1235


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda found: found.update(form=2), '"form" must be 1'),
        (lambda found: found.update(host="n"), "no field called 'host'"),
        (lambda found: found.pop("steps"), "'steps' is missing"),
        (lambda found: found.update(note="in /home/ada/course"), "a path"),
        (lambda found: found.update(note="ada@node7"), "a path, an address"),
        (lambda found: found.update(note="GPU-8f6a1b2c-1"), "serial number"),
        (lambda found: found.update(rehearsal=True), "rehearsal"),
        (lambda found: found.update(note="x" * 20_000), "more than 20,000 bytes"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(change, says) -> None:
    found = _measured()
    change(found)
    assert any(says in fault for fault in your_gpus.faults(your_gpus.as_text(found)))
    assert "no JSON" in your_gpus.faults("{")[0]


def test_stored_files_have_no_faults_and_the_report_has_them_all() -> None:
    stored = (ROOT / "benchmarks" / "results" / "simgpu_vs_hardware.txt").read_text(encoding="utf-8")
    assert report.files()
    for path in report.files():
        found = json.loads(path.read_text(encoding="utf-8"))
        assert your_gpus.faults(path.read_text(encoding="utf-8")) == [], path.name
        assert f"{found['machine']['gpus']} × {found['machine']['gpu']}" in stored and found["date"] in stored


@pytest.mark.extras
def test_the_stored_report_is_what_is_simulated() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "simgpu_vs_hardware.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    stored = (ROOT / "benchmarks" / "results" / "simgpu_vs_hardware.txt").read_text(encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert done.stdout == stored, "store what benchmarks/simgpu_vs_hardware.py prints"


def test_the_report_gives_median_and_worst_over_files_and_refuses_a_wrong_one(monkeypatch, tmp_path, capsys) -> None:
    paths = []
    for number, factor in enumerate((1.0, 2.0, 4.0)):
        found = _measured()
        found["steps"][0]["seconds"] = 0.1 * factor  # simulated: 0.1
        paths.append(tmp_path / f"{number}.json")
        paths[-1].write_text(your_gpus.as_text(found))
    monkeypatch.setattr(report, "simulated_anew", lambda found: found)
    assert report.main([str(path) for path in paths]) == 0
    shown = capsys.readouterr().out
    *_, row = (line.split() for line in shown.splitlines() if line.startswith("ResNet-50, fp32  "))
    assert row[-5:] == ["3", "50%", "-75%", "0%", "+0%"]
    assert "all-reduce, 1 MiB and more" in shown and shown.count("8 × NVIDIA H100 80GB HBM3, NVLink, 18 links") == 3
    paths[0].write_text("{}")
    assert report.main([str(paths[0])]) == 1 and "0.json" in capsys.readouterr().err


# --- The notebook, and gloo in place of NCCL ----------------------------------------------------------------


def test_the_notebook_is_short_and_shows_the_template_that_takes_its_file() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(notebook.cells) <= 16 and max(len(cell.source.splitlines()) for cell in code) <= 12
    assert not any(cell.outputs for cell in code), "stored without outputs: a rehearsal's figures say nothing"
    assert notebook_rules.no_machine_paths(notebook) == []
    form = (ROOT / ".github" / "ISSUE_TEMPLATE" / "measured.yml").read_text(encoding="utf-8")
    assert form.splitlines()[0].removeprefix("name: ") in "".join(cell.source for cell in notebook.cells)


@pytest.mark.extras
def test_the_whole_notebook_is_rehearsed_without_a_gpu_where_the_course_is_not_the_folder(tmp_path) -> None:
    shutil.copy(NOTEBOOK, tmp_path)
    options = ("--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=300", "-p", "no:cacheprovider", "-q")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", *options, NOTEBOOK.name]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-3000:]
    text = (tmp_path / "your_gpus.json").read_text(encoding="utf-8")
    assert your_gpus.faults(text) == ["It is of a rehearsal without a GPU."]
    found = json.loads(text)
    assert all(row["seconds"] and row["simulated"]["seconds"] for row in found["steps"]) and len(found["steps"]) == 5
    assert "rank 0 waits in all_reduce for rank 1" in found["hang"]["report"]
    early, late = found["straggler"]["spans"]
    step = found["straggler"]["late_step"]
    assert early[step][1] > 2 * late[step][1], "one waits for the 0.2 s that the other sleeps"


@pytest.mark.extras
@pytest.mark.skipif(GPUS > 1, reason="for machines where gloo stands in for NCCL")
def test_eight_ranks_as_eight_gpus_would_with_gloo_for_nccl(monkeypatch) -> None:
    monkeypatch.setattr(your_gpus, "SIZES", (2**12, 2**16))
    machine = {"gpus": 8, **H100}
    of = your_gpus.measure_all_reduce(machine)
    assert of["ranks"] == 8 and len(of["seconds"]) == 2 and min(your_gpus.bandwidths(of)) > 0
    assert your_gpus.hang(machine, timeout=10)["report"].count("waiting in all_reduce") == 7
    early = your_gpus.straggler(machine)
    assert len(early["spans"]) == 8 and early["rank"] == 7


@needs_gpus(1)
def test_the_programs_of_one_gpu_are_measured() -> None:
    machine = your_gpus.look()
    assert machine["gpus"] == GPUS and machine["launch_s"] > 0
    found = steps.Program("tiny GPT", 4, machine["half"])
    (row,) = your_gpus.utils.launch(steps.measure_step, found, ranks=1)
    assert row["seconds"] > 0 and row["peak_bytes"] > 0


@needs_gpus(2)
def test_a_straggler_shows_in_the_all_reduce_kernels_of_the_others() -> None:
    found = your_gpus.straggler(your_gpus.look())
    waited = [spans[found["late_step"]][1] for spans in found["spans"]]
    assert min(waited[:-1]) > 100 > waited[-1]
