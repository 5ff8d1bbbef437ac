"""The port of the rendezvous belongs to somebody else: another training, or what is left of the last one."""

import os
import socket

import torch.distributed as dist

somebody_else = socket.create_server(("", 0))
os.environ["MASTER_PORT"] = str(somebody_else.getsockname()[1])

del os.environ["TORCHELASTIC_USE_AGENT_STORE"]  # started without torchrun: rank 0 itself opens the port
dist.init_process_group("gloo")
