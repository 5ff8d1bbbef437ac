from torch.nn.parallel import replicate

REJECTED_WITH = "a list with one dict for each GPU"


def replicate_model(model, devices):
    return replicate(model, devices)
