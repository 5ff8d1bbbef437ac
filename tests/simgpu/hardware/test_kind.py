"""The data sheets of GPUs: relations that the documents state, and helpful errors."""

import pickle

import pytest

from simgpu.hardware import A100, ALL, CPU, GIB, H100, H200, RTX_4090, TOY, V100, gpu, link
from utils.hardware import links


def test_generations_relate_as_their_data_sheets_say():
    # A100 white paper: 2.5 times the V100's tensor cores, 156 TFLOP/s in tf32 = half of bf16.
    assert A100.flops["fp16"] / V100.flops["fp16"] == pytest.approx(2.5, rel=0.01)
    for ampere_or_later in (A100, H100, H200, RTX_4090):
        assert ampere_or_later.flops["bf16"] == ampere_or_later.flops["fp16"]
        assert ampere_or_later.flops["bf16"] / ampere_or_later.flops["tf32"] == pytest.approx(2, rel=0.001)
    # H100: 132 SMs × 4 tensor cores × 512 fused multiply-adds × 1.83 GHz, and fp8 at twice the rate.
    assert H100.flops["bf16"] == pytest.approx(132 * 4 * 512 * 2 * 1.83e9, rel=0.001)
    assert H100.flops["fp8"] == 2 * H100.flops["bf16"]
    # RTX 4090: 16,384 cores × 2 FLOP × 2.52 GHz.
    assert RTX_4090.flops["fp32"] == pytest.approx(16384 * 2 * 2.52e9, rel=0.001)
    # H200: the H100 with 1.4 times its bandwidth and 1.8 times its memory.
    assert H200.flops == H100.flops
    assert H200.memory_bytes_per_s / H100.memory_bytes_per_s == pytest.approx(1.43, abs=0.01)
    assert H200.memory_bytes / H100.memory_bytes == pytest.approx(1.76, abs=0.01)


def test_links_are_those_of_the_generation():
    assert [entry.nvlink for entry in (V100, A100, H100, H200)] == [
        *(links.NVLINK2, links.NVLINK3, links.NVLINK4, links.NVLINK4)
    ]
    assert [entry.host for entry in (V100, A100, H100, H200, RTX_4090)] == [
        *(links.PCIE3, links.PCIE4, links.PCIE5, links.PCIE5, links.PCIE4)
    ]
    assert RTX_4090.nvlink is None
    assert RTX_4090.peer.bytes_per_s == links.PCIE4.bytes_per_s
    assert RTX_4090.peer.share < links.PCIE4.share, "no access to each other's memory"
    assert H100.peer is links.NVLINK4


@pytest.mark.parametrize("entry", ALL, ids=lambda entry: entry.name)
def test_every_entry_has_sources_and_sensible_numbers(entry):
    assert len(entry.source) > 20
    assert len(entry.achievable_source) > 20
    assert 0.4 <= entry.achievable_flops <= 1.1
    assert 0.5 <= entry.achievable_bandwidth <= 1
    if (
        entry.multiprocessors
    ):  # the data sheet's fp32: 64 or 128 of an NVIDIA multiprocessor's cores, two operations each
        cores = entry.flops["fp32"] / 2 / entry.clock_hz / entry.multiprocessors
        assert cores == pytest.approx(64, rel=0.02) or cores == pytest.approx(128, rel=0.02)
    assert 0 <= entry.kernel_s < 1e-4
    assert pickle.loads(pickle.dumps(entry)) == entry
    assert len({entry, entry}) == 1
    if entry not in (CPU, TOY):
        assert "NVIDIA" in entry.source or "AMD" in entry.source


def test_kinds_that_the_hardware_lacks_fall_back():
    assert V100.peak_flops("bf16") == V100.peak_flops("tf32") == V100.peak_flops("fp8") == V100.flops["fp32"]
    assert A100.peak_flops("fp8") == A100.flops["bf16"]
    for kind in ("int64", "torch.int32", "uint8", "bool", "torch.bool"):
        assert H100.peak_flops(kind) == H100.flops["fp32"]


def test_names_of_torch_dtypes_are_understood():
    assert H100.peak_flops("torch.bfloat16") == H100.peak_flops("bf16") == 989.5e12
    assert H100.peak_flops("float32") == 67e12
    assert H100.peak_flops("float8_e4m3fn") == 1979e12


def test_a_kind_of_number_that_nobody_knows_is_refused():
    with pytest.raises(ValueError, match="'fp23' is no kind of number"):
        H100.peak_flops("fp23")


@pytest.mark.parametrize(
    ("written", "entry"),
    [
        *[("H100", H100), ("h100-sxm", H100), ("h100 sxm", H100), ("NVIDIA H100 80GB HBM3", H100)],
        *[("a100", A100), ("A100-80GB", A100), ("NVIDIA A100-SXM4-80GB", A100), ("Tesla V100-SXM2-32GB", V100)],
        *[("NVIDIA GeForce RTX 4090", RTX_4090), ("rtx4090", RTX_4090), ("4090", RTX_4090), ("cpu", CPU)],
        *[("NVIDIA H200", H200), ("Toy", TOY), (H100, H100)],
    ],
)
def test_names_are_found_however_they_are_written(written, entry):
    assert gpu(written) is entry


def test_every_name_leads_to_its_entry():
    assert [gpu(entry.name) for entry in ALL] == list(ALL)


def test_an_unknown_name_gets_a_suggestion_and_the_list():
    with pytest.raises(ValueError, match=r"no GPU called 'H100 SMX' here\. Did you mean 'H100 SXM'") as error:
        gpu("H100 SMX")
    assert all(entry.name in str(error.value) for entry in ALL)
    with pytest.raises(ValueError, match=r"no GPU called 'abacus' here\. Known: V100"):
        gpu("abacus")


@pytest.mark.parametrize("ambiguous", ["InfiniBand", "ethernet", "NVLink", "Ethernet 1", ""])
def test_what_several_links_are_called_is_refused_and_they_are_listed(ambiguous):
    with pytest.raises(ValueError, match=r"may be any of .*, .*: say which") as refused:
        link(ambiguous)
    assert all((one.name in str(refused.value)) == one.name.lower().startswith(ambiguous.lower()) for one in links.ALL)


def test_a_link_is_found_by_its_name_or_by_the_words_with_which_only_its_name_begins():
    for name in ("Ethernet 10", "ethernet 10 gbit/s"):
        assert link(name).name == "Ethernet 10 Gbit/s"
    assert link("infiniband ndr") is links.INFINIBAND_NDR
    assert link(links.NVLINK2) is links.NVLINK2


def test_with_memory_changes_memory_and_nothing_else():
    small = A100.with_memory(16 * GIB)
    assert small.memory_bytes == 16 * GIB
    assert small.name == "A100 SXM 80GB with 16 GiB"
    assert (small.flops, small.memory_bytes_per_s) == (A100.flops, A100.memory_bytes_per_s)
