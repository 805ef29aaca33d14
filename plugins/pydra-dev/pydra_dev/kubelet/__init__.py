"""A kubelet as a DRA plugin sees it: registration, prepare, unprepare, wipe, health, pods and their CDI devices."""
