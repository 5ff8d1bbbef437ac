"""What training scripts and cells on ranks import.

- ``rendezvous`` and ``exit``: how a script joins its process group, and how it ends.
- ``data``: real data that needs no download. ``models``: AlexNet, ResNet-50, GPT and Llama. ``same_training``: one
  training, the same for every framework; the scripts in ``scripts/frameworks`` run it.
- ``checkpoints``: the last few of a training on ranks; ``checkpoint_files``: one file that survives a crash;
  ``resumable``: what an exact resume needs beside them.
"""
