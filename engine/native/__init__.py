"""Kernels of our own for the CPU, in C++: compiled once when first needed, done without where that cannot be."""
