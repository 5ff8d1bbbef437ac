import traceback


def train_through_errors(train_step, batches):
    texts = {}
    for number in range(len(batches)):
        try:
            train_step(*batches[number])
        except ValueError as error:
            traceback.clear_frames(error.__traceback__)
            texts[number] = f"{error}"
    return list(texts.items())
