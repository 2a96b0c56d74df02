"""Experiments of CausalMIA."""
