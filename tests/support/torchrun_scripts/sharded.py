"""FSDP2 on a mesh of two dimensions, with a model from meta, a DataLoader with pinned memory, and checkpointing."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

local_rank = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", local_rank)
torch.cuda.set_device(device)
dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
assert dist.get_backend() == "nccl" or "nccl" in dist.get_backend()
world = dist.get_world_size()
mesh = init_device_mesh("cuda", (2, world // 2), mesh_dim_names=("replicate", "shard"))


class Block(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        mask = torch.ones(x.shape[-1], device="cuda")  # also when backward computes it again
        return x + self.down(nn.functional.gelu(self.up(self.norm(x)))) * mask


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


with torch.device("meta"):
    model = Net()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for block in model.blocks:
    fully_shard(block, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
model.to_empty(device="cuda")
for module in model.modules():
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()
assert next(model.parameters()).is_cuda

data = TensorDataset(torch.randn(64 * world, 256), torch.randn(64 * world, 256))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=16, sampler=sampler, pin_memory=True, num_workers=2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
stream = torch.cuda.Stream()
for epoch in range(2):
    sampler.set_epoch(epoch)
    for images, labels in loader:
        start.record()
        with torch.cuda.stream(stream):
            images, labels = images.cuda(non_blocking=True), labels.cuda(local_rank, non_blocking=True)
        torch.cuda.current_stream().wait_stream(stream)
        loss = nn.functional.mse_loss(model(images).float(), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss, op=dist.ReduceOp.AVG)
        end.record()
        torch.cuda.synchronize()
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: loss {loss:.3f}, {start.elapsed_time(end):.3f} ms, {torch.cuda.memory_reserved()} bytes")
dist.barrier(device_ids=[local_rank])
dist.destroy_process_group()
