"""One replica group, of one rank, of a run that goes on when another dies: torchft's idea on gloo.

python scripts/replica_group.py NAME PORT: the store at this port of this machine is read by whoever forms the quorums.
"""

import json
import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

name, port = sys.argv[1], int(sys.argv[2])
signal.alarm(90)  # nothing of this example stays for longer
store = dist.TCPStore("127.0.0.1", port)
weight, step, group, members = torch.zeros(1), 0, None, []
target = {"A": 0.0, "B": 3.0, "C": 6.0}[name]  # stands for the group's part of the data

while True:
    store.queue_push("asks", json.dumps([name, step]))  # 1. who is there for the next step?
    number, steps = json.loads(store.queue_pop(f"quorum for {name}"))
    try:
        if sorted(steps) != members:  # 2. other members: a new process group
            members = sorted(steps)
            keys = dist.PrefixStore(f"quorum {number}", store)
            group = dist.ProcessGroupGloo(keys, members.index(name), len(members), timedelta(seconds=10))
            print(f"{name} in step {step}: {' '.join(members)}, weight {weight.item():.2f}", flush=True)
        if len(set(steps.values())) > 1:  # 3. who is behind takes the state of a member that is in front
            front = members.index(max(members, key=steps.get))
            state = torch.tensor([weight.item(), float(step)])
            group.broadcast(state, front).wait()
            if step < int(state[1]):
                weight, step = state[:1].clone(), int(state[1])
                print(f"{name} took step {step}, weight {weight.item():.2f} from {members[front]}", flush=True)
        time.sleep(0.05)  # forward and backward
        sums = torch.tensor([weight.item() - target, float(store.check(["stop"]))])
        group.allreduce(sums).wait()
    except RuntimeError:  # 4. somebody has died on the way: this step counts for nothing
        members, group = [], None  # our connections close, so whoever waits for us notices, too
        continue
    weight, step = weight - 0.1 * sums[:1] / len(members), step + 1  # 5. the average over those who are there
    if sums[1]:
        break
print(f"{name} ends after step {step}: weight {weight.item():.2f}", flush=True)
os._exit(0)
