"""The transformer: its layers, attention, losses, decoding, and what they cost in FLOPs."""
