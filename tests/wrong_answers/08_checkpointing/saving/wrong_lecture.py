from utils import checkpoints

REJECTED_WITH = "utils.checkpoints is the lecture's own"


def save(state, path):
    checkpoints.save(state, path)
