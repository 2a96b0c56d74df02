"""The transformer: its layers, attention, losses and decoding, and their cost in FLOPs."""
