"""Grading a folder of learners' labs: ``python -m checks.grading DIR``.

    handed_in.py   which notebooks are there, and whose they are
    official.py    the course's labs, and their checks put back into a learner's notebook
    grade.py       each notebook: run, then judged
    sandbox.py     where its code runs; confine.py holds it there, program.py talks with it
    kernel.py      inside: the notebook's cells run, and the checks hand in its functions
    judge.py       inside, when all that has ended: the same checks judge these functions
    table.py       learner × exercise, as text and as CSV; feedback.py: a file for each learner

Nothing is imported here.
"""
