"""Training of one model: packed batches, the compiled update, checkpoints, and sharding over devices."""
