"""The kubelet's side: the gRPC services that it calls, and the messages they speak."""
