"""Tensor parallelism by DTensor, sequence parallelism included."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (world,), mesh_dim_names=("tp",))
assert dist.is_nccl_available()


class FeedForward(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


torch.manual_seed(0)
with torch.device("cuda"):
    model = nn.Sequential(*[FeedForward() for _ in range(2)])
for block in model:
    plan = {
        "up": ColwiseParallel(input_layouts=Shard(0)),
        "down": RowwiseParallel(output_layouts=Shard(0)),
    }
    parallelize_module(block, mesh["tp"], plan)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
x = distribute_tensor(torch.randn(64, 512, device=f"cuda:{torch.cuda.current_device()}"), mesh, [Shard(0)]).to_local()
for step in range(3):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0:
        print(f"step {step}: {loss.detach().cpu().numpy():.3f}")
dist.destroy_process_group()
