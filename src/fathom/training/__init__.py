"""Training to a target quality: trainers, checkpoints, and the record of the run."""
