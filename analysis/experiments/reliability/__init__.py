"""Experiments of Reliability."""
