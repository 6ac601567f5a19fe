"""Engines that place whole layers and tensors (llama.cpp and its like): nothing moves, so a plan can be exact."""
