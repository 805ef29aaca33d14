"""NVML: the only room that calls pynvml. Errors, calls, the session, and what is read through it."""
