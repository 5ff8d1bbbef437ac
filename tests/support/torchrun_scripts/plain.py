"""One GPU if there is one, no ranks; a learner's first program."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(3):
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(step)).to(device)
    loss = nn.functional.mse_loss(model(x), torch.ones(64, 256, device=device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.6f}")
    assert loss.device.type == device and loss.is_cuda == (device == "cuda")
