"""torch.save and torch.load with simulated GPUs: as with real ones, map_location included."""

import copy
import gc
import io
import pickle

import pytest
import torch
from simgpu_support import MODELS, OPTIMIZERS, allocated, assert_same_bits, built, same_bits

import simgpu


@pytest.fixture(autouse=True)
def _cluster():
    simgpu.cluster(gpus_per_node=3)
    torch.manual_seed(0)


def saved(thing, **options):
    file = io.BytesIO()
    torch.save(thing, file, **options)
    return file.getvalue()


def loaded(data, *args, **options):
    return torch.load(io.BytesIO(data), *args, **options)


class Device(str):
    """To be made a torch.device in the test: before there is a cluster, torch does not know the name."""


@pytest.mark.parametrize(
    ("location", "home"),
    [
        ("cpu", "cpu"),
        (torch.device("cpu"), "cpu"),
        ("simgpu:0", "simgpu:0"),
        (Device("simgpu:2"), "simgpu:2"),
        ({"simgpu:1": "simgpu:0"}, "simgpu:0"),
        ({"simgpu:0": "simgpu:2"}, "simgpu:1"),
        ({"simgpu:1": "cpu"}, "cpu"),
        (None, "simgpu:1"),
        (lambda storage, _location: storage, "cpu"),
    ],
    ids=lambda value: "function" if callable(value) else str(value),
)
def test_map_location_says_where_a_tensor_goes(location, home):
    location = torch.device(location) if type(location) is Device else location
    x = torch.arange(6.0, device="simgpu:1").view(2, 3)
    again = loaded(saved({"x": x}), map_location=location)["x"]
    assert again.device == torch.device(home)
    assert isinstance(again, simgpu.SimTensor) == (home != "cpu")
    assert same_bits(again, x)


def test_a_checkpoint_of_the_cpu_can_be_loaded_onto_a_gpu():
    model = built("cnn")
    data = saved(model.state_dict())
    state = loaded(data, map_location="simgpu:1")
    assert {value.device for value in state.values()} == {simgpu.device(1)}
    again = built("cnn").to("simgpu:1")
    with torch.no_grad():
        again.first.weight.zero_()
    again.load_state_dict(state)
    assert_same_bits(model.state_dict(), again.state_dict())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_resumes_exactly_from_a_checkpoint(optimizer):
    batch = MODELS["mlp"][1]

    def step(model, algorithm):
        algorithm.zero_grad()
        home = next(model.parameters()).device
        model(batch.to(home)).square().mean().backward()
        algorithm.step()

    model = built("mlp").eval().to("simgpu:1")
    algorithm = OPTIMIZERS[optimizer](model.parameters())
    for _ in range(3):
        step(model, algorithm)
    data = saved({"model": model.state_dict(), "optimizer": algorithm.state_dict(), "step": 3})
    for home, location in (("simgpu:1", None), ("simgpu:2", "simgpu:2"), ("cpu", "cpu")):
        checkpoint = loaded(data, map_location=location)
        again = built("mlp").eval().to(home)
        resumed = OPTIMIZERS[optimizer](again.parameters())
        again.load_state_dict(checkpoint["model"])
        resumed.load_state_dict(checkpoint["optimizer"])
        for state in resumed.state.values():
            assert {v.device for name, v in state.items() if name != "step"} == {torch.device(home)}
        reference, original = copy.deepcopy(model), OPTIMIZERS[optimizer](model.parameters())
        original = OPTIMIZERS[optimizer](reference.parameters())
        original.load_state_dict(loaded(data)["optimizer"])
        for _ in range(2):
            step(again, resumed)
            step(reference, original)
        assert checkpoint["step"] == 3
        assert_same_bits(reference.state_dict(), again.state_dict())


def test_tensors_that_share_a_storage_share_it_again():
    whole = torch.arange(12.0, device="simgpu:1")
    again = loaded(saved({"whole": whole, "part": whole[2:6], "table": whole.view(3, 4).t()}))
    assert again["table"].stride() == (1, 4)
    assert again["part"].tolist() == [2, 3, 4, 5]
    again["whole"][2] = 100
    assert again["part"][0].item() == 100
    assert again["table"][2, 0].item() == 100
    assert allocated()[1] == 2 * 512, "two storages: the old one and the new one"


def test_tied_weights_are_tied_again():
    model = built("gpt tied").to("simgpu:1")
    again = loaded(saved(model), weights_only=False)
    assert again.gpt.head.output.weight is again.gpt.embed.tokens.weight
    state = loaded(saved(model.state_dict()))
    assert state["gpt.head.output.weight"].data_ptr() == state["gpt.embed.tokens.weight"].data_ptr()
    with torch.no_grad():
        state["gpt.head.output.weight"].zero_()
    assert state["gpt.embed.tokens.weight"].abs().sum() == 0


def test_the_safe_loader_is_enough_and_stays_safe():
    data = saved({"model": built("mlp").to("simgpu:1").state_dict(), "lr": 0.1})
    assert loaded(data, weights_only=True)["lr"] == 0.1

    class Anything:
        pass

    with pytest.raises((pickle.UnpicklingError, AttributeError)):
        loaded(saved({"x": torch.ones(1, device="simgpu:1"), "y": Anything}), weights_only=True)


def test_the_old_file_format_and_plain_pickle_work():
    x = torch.arange(4.0, device="simgpu:1")
    again = loaded(saved({"x": x, "half": x[2:]}, _use_new_zipfile_serialization=False))
    assert again["x"].device == simgpu.device(1)
    assert again["half"].tolist() == [2.0, 3.0]
    again = pickle.loads(pickle.dumps(x))
    assert again.device == simgpu.device(1)
    assert torch.equal(again, x)


def test_a_file_on_disk_can_be_loaded_later_by_a_new_cluster(tmp_path):
    path = tmp_path / "model.pt"
    torch.save(built("mlp").to("simgpu:1").state_dict(), path)
    simgpu.cluster(gpus_per_node=2)
    state = torch.load(path)
    assert {value.device for value in state.values()} == {simgpu.device(1)}
    assert_same_bits(built("mlp").state_dict(), state)
    assert_same_bits(built("mlp").state_dict(), torch.load(path, map_location="cpu", mmap=True))


def test_a_cluster_without_the_gpu_says_so_and_what_to_do_works():
    data = saved({"x": torch.ones(3, device="simgpu:2")})
    simgpu.cluster(gpus_per_node=1)
    with pytest.raises(RuntimeError, match=r"simgpu:2 .*(1 GPU|map_location)"):
        loaded(data)
    assert loaded(data, map_location={"simgpu:2": "simgpu:0"})["x"].device == simgpu.device(0)
    assert loaded(data, map_location="cpu")["x"].device.type == "cpu"


def test_loading_counts_memory_and_can_run_out_of_it():
    data = saved({"x": torch.ones(1000, 1000, device="simgpu:1")})
    assert allocated() == [0, 0, 0]
    state = loaded(data)
    assert allocated() == [0, 4_000_256, 0]
    gc.disable()
    state.clear()
    assert torch.simgpu.memory_allocated(1) == 0, "without the help of the garbage collector"
    gc.enable()
    simgpu.cluster(gpus_per_node=2, memory=2**20)
    with pytest.raises(torch.OutOfMemoryError):
        loaded(data)
    assert allocated() == [0, 0]


def test_a_checkpoint_can_be_loaded_where_only_shapes_count():
    data = saved(built("mlp").state_dict())
    simgpu.cluster(gpus_per_node=2, numbers=False)
    state = loaded(data, map_location="simgpu:1")
    assert state["0.weight"].device == simgpu.device(1)
    model = built("mlp").to("simgpu:1")
    model.load_state_dict(state)
    assert torch.simgpu.memory_allocated(1) > 0
