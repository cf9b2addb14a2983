"""Several ranks on torch.distributed: the process group, what each step waits for, and the strategies."""
