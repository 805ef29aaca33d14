"""The node below its roots: the kernel's files, PCI functions, device nodes, the driver's installation and programs."""
