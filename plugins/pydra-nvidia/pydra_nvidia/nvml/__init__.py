"""NVML: the only package that calls pynvml. Its library, errors and session, and what is read and set through it."""
