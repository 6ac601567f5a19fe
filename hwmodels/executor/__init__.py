"""Real work of an expert engine, in pieces that both the calibrator and the live executor use.

`experts` is the CPU pool's kernel, `files` an expert file with its page cache, `card` the card's side (CUDA
graphs through torch, copies through the driver). Weights are bfloat16 numbers of the model's own byte sizes,
drawn at random: what is timed is the moving and multiplying of bytes, not what a model says. numba and torch
are imported when a class is made, never before.
"""
