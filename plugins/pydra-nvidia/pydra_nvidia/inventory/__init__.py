"""From a reading of the hardware to what is published: devices, attributes, counters. Pure."""
