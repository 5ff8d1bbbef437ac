"""What ordinary programs do with tensors of a GPU, beside computing: as on CUDA, and with the plain CPU's numbers."""

import copy
import gc

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parallel import comm
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence, unpack_sequence
from torch.utils.data import DataLoader, Dataset

import simgpu
import utils

GPU = "simgpu:1"


@pytest.fixture(autouse=True)
def _cluster() -> None:
    simgpu.cluster(gpus_per_node=3)


FOLLOW = {
    "to": lambda host, x: host.to(x),
    "to(tensor=)": lambda host, x: host.to(tensor=x),
    "to, not waiting": lambda host, x: host.to(x, True),
    "Tensor.to": lambda host, x: torch.Tensor.to(host, x),
    "type_as": lambda host, x: host.type_as(x),
    "type_as of another GPU": lambda host, x: host.to("simgpu:0").type_as(x),
    "new of numbers": lambda host, x: x.new(host.tolist()),
    "new of a size": lambda host, x: x.new(3).copy_(host),
    "new like": lambda host, x: x.new(x[0].size()).copy_(host),
    "new_tensor": lambda host, x: x.new_tensor(host.tolist()),
    "type": lambda host, x: host.to(x.device).type(x.type()),
    "copy": lambda host, x: copy.copy(host.to(x)),
}


@pytest.mark.parametrize("follow", FOLLOW.values(), ids=FOLLOW)
def test_a_tensor_told_to_follow_another_lands_on_its_gpu_in_replicas_too(follow) -> None:
    host = torch.arange(3.0)
    x = torch.ones(4, 3, device=GPU, dtype=torch.float16)
    there = follow(host, x)
    assert (there.device, there.dtype, there.tolist()) == (x.device, x.dtype, host.tolist())

    class Masked(nn.Module):
        def forward(self, x):
            return x * follow(host, x)

    out = nn.DataParallel(Masked())(torch.ones(4, 3, device="simgpu:0"))
    assert torch.equal(out.cpu(), host.expand(4, 3))


NUMBERS = {
    "tensor": lambda s, i: torch.tensor([s, s]),
    "tensor of lists": lambda s, i: torch.tensor([[s, 1.0], [2.0, s]]),
    "tensor there": lambda s, i: torch.tensor([s, s], device=s.device),
    "as_tensor": lambda s, i: torch.as_tensor((s, s)),
    "FloatTensor": lambda s, i: torch.FloatTensor([s, s]),
    "new_tensor": lambda s, i: s.new_tensor([s, s]),
    "stack": lambda s, i: torch.stack([s, s]),
    "of integers": lambda s, i: torch.tensor([i, 1]),
    "range": lambda s, i: torch.tensor(list(range(i))),
    "numpy": lambda s, i: torch.tensor(np.mean([s.item(), s.numpy(force=True)])),
}


@pytest.mark.parametrize("make", NUMBERS.values(), ids=NUMBERS)
def test_numbers_of_a_gpu_are_numbers(make) -> None:
    plain = make(torch.tensor(0.5), torch.tensor(2))
    there = make(torch.tensor(0.5, device=GPU), torch.tensor(2, device=GPU))
    assert torch.equal(there.cpu(), plain) and there.dtype is plain.dtype


def test_pointers_tell_storages_apart_and_stay() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to(GPU)
    net[1].weight = net[0].weight
    before = [p.data_ptr() for p in net.parameters()]
    assert sum(p.numel() for p in {p.data_ptr(): p for p in net.parameters()}.values()) == 24
    assert len({m.weight.data_ptr() for m in net}) == 1  # tied
    net(torch.ones(2, 4, device=GPU)).sum().backward()
    gc.collect()
    assert [p.data_ptr() for p in net.parameters()] == before
    x = torch.ones(3, 4, device=GPU)
    assert x[1:].data_ptr() - x.data_ptr() == 16 and x.detach().data_ptr() == x.data_ptr()
    assert x.data_ptr() == x.untyped_storage().data_ptr() == x.storage().data_ptr() != x.clone().data_ptr()
    assert torch.empty(0, device=GPU).data_ptr() == 0


def test_a_copy_shares_the_memory_and_what_it_is() -> None:
    x = torch.arange(3.0, device=GPU)
    y = copy.copy(x)
    y += 1
    assert str(y.device) == GPU and x.tolist() == [1.0, 2.0, 3.0] and y.data_ptr() == x.data_ptr()
    weight = nn.Linear(2, 2).to(GPU).weight
    assert isinstance(copy.copy(weight), nn.Parameter) and copy.copy(weight).requires_grad


def test_storages_have_sizes_and_are_shared_as_all_of_a_gpu() -> None:
    x = torch.ones(3, device=GPU)
    assert x.storage().nbytes() == x.untyped_storage().nbytes() == 12 and x.untyped_storage().device == x.device
    assert x.share_memory_() is x and x.is_shared() and isinstance(x.untyped_storage(), torch.UntypedStorage)
    assert nn.Linear(2, 2).to(GPU).share_memory().weight.is_shared()
    assert x.requires_grad_().numpy(force=True).tolist() == [1.0] * 3
    with pytest.raises(TypeError, match=r"Use Tensor.cpu\(\)"):
        x.numpy()


class _OnAGPU(Dataset):
    def __init__(self, kept=None) -> None:
        self.kept = kept

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.ones(2, device=GPU) * i if self.kept is None else self.kept[i]


def test_a_worker_of_a_loader_is_told_that_it_has_no_gpu() -> None:
    for data in (_OnAGPU(), _OnAGPU(torch.ones(4, 2, device=GPU))):
        assert [str(batch.device) for batch in DataLoader(data, batch_size=2)] == [GPU] * 2
        with pytest.raises(RuntimeError, match=r"DataLoader's worker.*give batches of the CPU"):
            list(DataLoader(data, batch_size=2, num_workers=1))
    assert len(list(DataLoader(range(4), batch_size=2, num_workers=1))) == 2


def test_a_model_on_a_simulated_gpu_is_not_sent_to_ranks() -> None:
    with pytest.raises(TypeError, match=r"move it to the CPU before, with .cpu\(\)"):
        utils.launch(len, nn.Sequential(nn.Linear(2, 2)).to(GPU), ranks=2)


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
@pytest.mark.parametrize("batch_first", [True, False])
def test_recurrent_networks_read_packed_sequences(kind, batch_first) -> None:
    torch.manual_seed(0)
    plain = kind(3, 4, num_layers=2, bidirectional=True, batch_first=batch_first)
    x, lengths = torch.randn(4, 5, 3), torch.tensor([3, 5, 2, 1])
    found = []
    for net, device in ((plain, "cpu"), (copy.deepcopy(plain).to(GPU), GPU)):
        inputs = (x if batch_first else x.transpose(0, 1)).detach().to(device).requires_grad_()
        packed = pack_padded_sequence(inputs, lengths, batch_first, enforce_sorted=False)
        assert packed.batch_sizes.device.type == "cpu" and packed.batch_sizes.tolist() == [4, 3, 2, 1, 1]
        out, ends = pad_packed_sequence(net(packed)[0], batch_first)
        out.square().sum().backward()
        found.append([packed.data, out, ends, inputs.grad, net.weight_hh_l0.grad])
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b.cpu(), atol=1e-6)  # (recurrent networks: up to rounding)


def test_lengths_and_steps_of_packed_sequences_are_on_the_host() -> None:
    with pytest.raises(RuntimeError, match="'lengths' argument should be a 1D CPU int64 tensor"):
        pack_padded_sequence(torch.ones(2, 2, 3, device=GPU), torch.tensor([2, 1], device=GPU))
    packed = pack_sequence([torch.ones(3, device=GPU), torch.ones(2, device=GPU)])
    assert packed.batch_sizes.tolist() == [2, 2, 1] and [len(one) for one in unpack_sequence(packed)] == [3, 2]
    torch.simgpu.synchronize(1)
    x = torch.ones(200, 200, device=GPU)
    for _ in range(20):
        x = x @ x
    pack_padded_sequence(x[:, :, None], torch.full((200,), 200), batch_first=True)
    assert not torch.simgpu.current_stream(GPU).query()  # the host has gone on
    simgpu.cluster(gpus_per_node=2, numbers=False)
    packed = pack_padded_sequence(torch.ones(4, 5, 3, device=GPU), torch.tensor([5, 3, 2, 1]), batch_first=True)
    assert nn.GRU(3, 4, device=GPU)(packed)[0].data.shape == (11, 4)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("where", ["cpu", GPU])
def test_the_loss_of_sequences_takes_lengths_from_everywhere(reduction, where) -> None:
    scores, targets = torch.randn(5, 2, 4), torch.tensor([[1, 2], [2, 3]])
    lengths = torch.tensor([5, 4]), torch.tensor([2, 1])
    found = []
    for device in "cpu", GPU:
        x = scores.detach().to(device).requires_grad_()
        theirs = [each.to("cpu" if device == "cpu" else where) for each in lengths]
        loss = F.ctc_loss(x.log_softmax(2), targets.to(device), *theirs, reduction=reduction)
        loss.sum().backward()
        found.append((loss.detach().cpu(), x.grad.cpu()))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


EMPTY = [((2, 0, 5, 8), None), ((0, 2, 5, 8), None), ((2, 2, 0, 8), None), ((2, 2, 3, 8), (2, 2, 0, 8))]


@pytest.mark.parametrize("operator", ["functional", "flash"])
@pytest.mark.parametrize(("asked", "known"), EMPTY)
@pytest.mark.parametrize("numbers", [True, False])
def test_attention_of_nothing_is_what_the_cpu_makes_of_it(operator, asked, known, numbers) -> None:
    simgpu.cluster(gpus_per_node=2, numbers=numbers)
    found = []
    for device in "cpu", GPU:
        query, key, value = (torch.ones(s, device=device, requires_grad=True) for s in (asked, *[known or asked] * 2))
        if operator == "flash" and device == GPU:  # what a DTensor calls for the heads of a rank
            out = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value)[0]
        else:
            out = F.scaled_dot_product_attention(query, key, value)
        out.sum().backward()
        found.append([out, query.grad, key.grad, value.grad])
    for a, b in zip(*found, strict=True):
        assert a.shape == b.shape and (not numbers or torch.equal(a, b.cpu()))


def test_a_padded_encoder_is_evaluated_and_its_products_count() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    plain = nn.TransformerEncoder(layer, 2).eval()
    there = copy.deepcopy(plain).to(GPU)
    x, padding = torch.randn(3, 5, 16), torch.arange(5) >= torch.tensor([[5], [3], [1]])
    with torch.no_grad(), simgpu.profile() as prof:
        out = there(x.to(GPU), src_key_padding_mask=padding.to(GPU)).cpu()
    assert torch.allclose(out[~padding], plain(x, src_key_padding_mask=padding)[~padding], atol=1e-6)
    assert {"addmm", "mm"} & {event.name for event in prof.events if event.flops}


PARAMETRIZED = {
    "spectral_norm": lambda net: parametrizations.spectral_norm(net),
    "orthogonal": lambda net: parametrizations.orthogonal(net),
    "weight_norm": lambda net: parametrizations.weight_norm(net),
    "one's own": lambda net: parametrize.register_parametrization(net, "weight", nn.Tanh()),
}


@pytest.mark.parametrize("change", PARAMETRIZED.values(), ids=PARAMETRIZED)
def test_modules_that_are_there_can_be_parametrized(change) -> None:
    found = []
    for device in "cpu", GPU:
        torch.manual_seed(0)
        net = nn.Linear(5, 5).to(device)
        torch.manual_seed(1)
        with torch.random.fork_rng(devices=[]):
            net = change(net)
        net = net.eval()
        net(torch.ones(2, 5, device=device)).square().sum().backward()
        assert {p.device.type for p in net.parameters()} == {torch.device(device).type}
        found.append([p.shape for p in net.parameters() if p.grad is not None])
    assert found[0] == found[1] and found[0]


def test_set_takes_over_the_memory_of_another() -> None:
    x, y = torch.empty(0, device=GPU), torch.arange(4.0, device=GPU)
    assert x.set_(y) is x
    y[0] = 7
    assert x.tolist() == [7.0, 1.0, 2.0, 3.0]
    with pytest.raises(RuntimeError, match=f"on {GPU} to one on simgpu:0"):
        x.set_(torch.ones(2, device="simgpu:0"))


def test_the_functions_of_comm() -> None:
    x = torch.arange(8.0).view(4, 2)
    for source in (x, x.to("simgpu:0")):
        copies = comm.broadcast(source, [0, 1])
        assert [str(one.device) for one in copies] == ["simgpu:0", GPU]
        assert all(torch.equal(one.cpu(), x) for one in copies)
    there = [torch.empty(4, 2, device="simgpu:0"), torch.empty(4, 2, device=GPU)]
    comm.broadcast(x.to("simgpu:0"), out=there)
    assert all(torch.equal(one.cpu(), x) for one in there)
    parts = [torch.empty(1, 2, device="simgpu:0"), torch.empty(3, 2, device=GPU)]
    comm.scatter(x.to("simgpu:0"), out=parts)
    assert torch.equal(torch.cat([one.cpu() for one in parts]), x)
    assert torch.equal(comm.gather(parts, out=torch.empty(4, 2, device="simgpu:0")).cpu(), x)


@pytest.mark.parametrize("lengths", ["cpu", GPU])
def test_ctc_loss_wants_numbers_and_says_so(lengths: str) -> None:
    def loss() -> torch.Tensor:
        scores = torch.randn(9, 2, 5, device=GPU).log_softmax(2)
        sizes = [torch.full((2,), size, device=lengths) for size in (9, 3)]
        return F.ctc_loss(scores, torch.ones(2, 3, dtype=torch.int64, device=GPU), *sizes)

    assert loss().isfinite()
    with simgpu.cluster(gpus_per_node=2, numbers=False), pytest.raises(RuntimeError, match="numbers=True"):
        loss()


def test_compiling_says_that_it_changes_nothing() -> None:
    net = nn.Linear(3, 2).to(GPU)
    x = torch.ones(4, 3, device=GPU)
    with pytest.warns(UserWarning, match=r"torch.compile leaves simulated GPUs as they are"):
        compiled = torch.compile(net, fullgraph=True)
    assert torch.equal(compiled(x), net(x))


def test_the_counter_of_operations_knows_attention() -> None:
    q = torch.ones(2, 3, 8, 16, device=GPU, requires_grad=True)
    with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
        F.scaled_dot_product_attention(q, q, q).sum().backward()
    product = 2 * 2 * 3 * 8 * 8 * 16
    assert counter.get_total_flops() == (2 + 5) * product


def test_weak_references_of_storages_live_as_long_as_the_memory() -> None:
    x = torch.ones(3, device=GPU)
    reference = StorageWeakRef(x.untyped_storage())
    view = x[1:]
    del x
    assert not reference.expired()
    del view
    assert reference.expired()


WRITES = {
    "add_": lambda x: x.add_(1),
    "copy_ from the host": lambda x: x.copy_(torch.zeros(3, 3)),
    "one row": lambda x: x.__setitem__(0, 5),
    "a view": lambda x: x[0].add_(1),
    "a view of a view": lambda x: x.view(-1)[2:4].zero_(),
    "transposed": lambda x: x.t_()[0].mul_(3),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_an_ordinary_tensor_can_be_written_under_inference_mode(write) -> None:
    def changed(device: str) -> torch.Tensor:
        x = torch.arange(9.0, device=device).view(3, 3).clone()
        with torch.inference_mode():
            write(x)
        return (x.requires_grad_() * x).sum()  # it is still one that autograd can use

    there = changed("simgpu:1")
    there.backward()
    assert there.item() == changed("cpu").item()


def test_batch_norm_keeps_its_statistics_under_inference_mode() -> None:
    norm = nn.BatchNorm1d(3).to("simgpu:1")
    with torch.inference_mode():
        norm(torch.ones(4, 3, device="simgpu:1"))
    assert norm.running_mean.tolist() == pytest.approx([0.1] * 3)
