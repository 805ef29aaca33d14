"""The files of a machine that is not there: the kernel's, the driver's, the device nodes, as `machine` has it now."""
