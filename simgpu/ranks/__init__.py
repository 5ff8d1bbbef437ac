"""A simulated GPU for every rank: torch's own distributed code, with time and memory, on any computer.

    torchrun --nproc-per-node 4 program.py
        import simgpu
        simgpu.join(gpu="H100", nodes=1)                       this process owns simgpu:<local rank>
        dist.init_process_group("simccl")                      "cuda" and "nccl" become "simgpu" and "simccl"
        model = DistributedDataParallel(model.to(device))      torch's own; FSDP2, DTensor, pipelining, … too

In a notebook, ``%%ranks -n 4 --gpu H100`` does both.

cluster.py     the cluster as one rank sees it, and ranks that stand for others
joining.py     ``simgpu.join``, ``simgpu.one_of``
changes.py     what is changed in torch.distributed; refusals.py: what to do instead of what does not work
dtensors.py    what DTensors need: random numbers, and optimizers over many of them
cells.py       simulated GPUs for ``%%ranks --gpu``, and pictures of all ranks
operators.py   collectives of c10d, from issue to their place in time; and the functional ones of DTensor and FSDP2
sizes.py       what every rank gives and gets, and whether it fits together
messages.py    send and recv
issue.py       the host launches a communication; the ranks agree on when it begins; how long it takes, on which links
movement.py    the numbers travel over gloo, also where one process stands for many ranks
works.py       what a collective returns
"""
