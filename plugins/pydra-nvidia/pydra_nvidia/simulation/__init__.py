"""NVIDIA hardware that is not there: an NVML below the unmodified pynvml, the kernel's files, the driver's programs."""
