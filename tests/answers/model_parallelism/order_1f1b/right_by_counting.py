def schedule_1f1b(stage, p, m):
    order, forwards, backwards = [], 0, 0
    while backwards < m:
        room = forwards - backwards < p - stage  # fewer are on their way than the rest of the pipeline can hold
        if forwards < m and room:
            order.append(f"F{forwards}")
            forwards += 1
        else:
            order.append(f"B{backwards}")
            backwards += 1
    return order
