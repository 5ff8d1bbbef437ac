"""What the lectures build and start: outside of this course nobody needs it.

- ``algorithms``: what lectures build from nothing, all-reduce, DDP, pipelines, a parameter server, as tested modules.
- ``pictures``: what one lecture alone draws. ``training``: what one lecture alone feeds, trains, times or tunes.
- ``launchers``: the real launchers that lectures start, torchrun, Slurm, Ray, Horovod, MPI, TensorFlow.
"""
