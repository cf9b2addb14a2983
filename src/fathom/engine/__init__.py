"""A workload on a device: the session, and the engines that execute its steps."""
