"""The labs, in the order of the course: a package for each, named by its slug.

01  single_vs_multi_node/             ranks and nodes, groups, the time of an all-reduce, broken launches
02  model_parallelism/                stages, and pipelines of them
03  data_parallel_internals/          data parallelism out of four steps
04  gil_and_refcounting/              reference counts, loops that leak, processes instead of threads
05  parameter_server_and_all_reduce/  all-reduces out of send and recv, and a parameter server
06  ddp_and_bucketing/                DistributedDataParallel, one property after the other
07  buckets_and_overlap/              buckets, and unused parameters that do not hold them up
08  feeding_the_ranks/                samplers, epochs that repeat, loaders of different length, workers
10  checkpointing/                    a save that survives a kill, exact resumes
11  torchrun/                         a script for torchrun, a line typed on every node, broken programs
12  failures_and_hangs/               reading logs, stacks and recorders of ranks that stand still
13  memory_and_precision/             a step's bytes, activation checkpointing, a loss scaler, MFU and HFU
14  sharded_data_parallel/            what FSDP does, one property after the other
15  sharded_checkpoints/              shards cut anew, DCP in use, saves in the background
16  tensor_parallelism/               the parts of a transformer, each cut over ranks
17  pipeline_schedules/               orders of any pipeline, halves of a backward pass, tied tables, cuts
18  context_parallelism/              blocks of keys, a ring that hides its messages, zig-zag, a cut sequence's loss
19  expert_parallelism/               tokens that travel to experts, a balanced router, gradients, placing
20  measuring/                        a timer, utilization, a late rank, exposed communication
21  choosing/                         reasons as numbers, plans that run, a plan that does not fit, a run of months
22  other_frameworks/                 the same training with MPI, Horovod, TensorFlow and JAX
23  ray_and_tuning/                   random search and halving, by hand and with Ray Tune
24  ray_train/                        a training that goes on after accidents
"""
