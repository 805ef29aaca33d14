"""NVML: the only room that calls pynvml. Its library, errors and session, and what is read and set through it."""
