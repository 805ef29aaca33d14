"""From a reading of the hardware to what is published: devices, counter sets, classes. Pure."""
