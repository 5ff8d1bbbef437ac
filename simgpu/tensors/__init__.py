"""The tensor that lives on a simulated GPU, and what operators do with it.

tensor.py       the tensor
dispatch.py     where operators come in, and those that move data or need numbers
operators.py    all others, if there is room for what comes out; schemas.py: what is known of each
factories.py    new tensors
placement.py    on which GPU an operator runs and a new tensor lives
shapes.py       shapes without numbers, remembered; known.py keeps the few numbers that torch reads even then
copies.py       from device to device: which link they take, and who waits
attention.py    fused attention, RMSNorm, recurrent cells; fused.py has kernels that only CUDA has
autocast.py     which operators compute in which precision
backward.py     autograd's threads, and pools of threads
parallel.py     what ``nn.DataParallel`` and optimizers need from C++
collectives.py  all-reduce and its kin, over tensors of one process
saving.py       ``torch.save`` and ``torch.load``
"""
