def average(world, parameters):
    import numpy
    import torch

    used = [parameter for parameter in parameters if parameter.grad is not None]
    mine = numpy.concatenate([parameter.grad.numpy().ravel() for parameter in used])
    total = numpy.empty_like(mine)
    world.Allreduce(mine / world.Get_size(), total)
    begin = 0
    for parameter in used:
        end = begin + parameter.numel()
        parameter.grad = torch.from_numpy(total[begin:end].reshape(parameter.shape))
        begin = end
