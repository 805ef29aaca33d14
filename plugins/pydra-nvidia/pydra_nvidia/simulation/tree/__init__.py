"""The files of a simulated machine: the kernel's, the driver's, the device nodes, as `machine_store` has them now."""
