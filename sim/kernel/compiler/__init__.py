"""Compiles plain functions and the states they work on; knows numba, and no expert."""
