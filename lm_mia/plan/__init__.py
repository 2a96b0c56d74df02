"""What a config and its sweep cost: FLOPs, bytes, time, and what more references would add."""
