"""Training one model: packed batches, the compiled update, checkpoints, and devices that share the work."""
