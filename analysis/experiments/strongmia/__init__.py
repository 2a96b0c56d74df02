"""Figures of StrongMIA."""
