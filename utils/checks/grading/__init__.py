"""Grading a folder of learners' labs: ``python -m utils.checks.grading DIR``.

    handed_in.py   which notebooks are there, and the official checks put back into them
    execute.py     each in a kernel of its own
    grade.py       what they handed in, judged
    table.py       learner × exercise, as text and as CSV

Nothing is imported here.
"""
