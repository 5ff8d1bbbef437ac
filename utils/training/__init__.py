"""What training scripts import.

- ``rendezvous`` and ``exit``: how a script joins its process group, and how it ends.
- ``data``: real data that needs no download; ``feeding``: who gets which sample, loaders and their workers.
- ``models``: AlexNet, ResNet-50 and GPT. ``same_training``: one training, the same for every framework.
- ``checkpoints``: the last few of a training on ranks; ``checkpoint_files``: one file that survives a crash;
  ``resumable``: what an exact resume needs beside them; ``resume_task``: a training to interrupt and go on with.
- ``tuning``: a training to be tuned; ``searches``: Ray Tune's searchers on recorded learning curves.
"""
