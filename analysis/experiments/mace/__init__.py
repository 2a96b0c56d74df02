"""Experiments of MACE."""
