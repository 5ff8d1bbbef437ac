REJECTED_WITH = "pickles what it sends"


def average(world, parameters):
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad = world.allreduce(parameter.grad) / world.Get_size()
