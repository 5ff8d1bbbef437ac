from utils.training import checkpoints

REJECTED_WITH = "utils.training.checkpoints is the lecture's own"


def save(state, path):
    checkpoints.save(state, path)
