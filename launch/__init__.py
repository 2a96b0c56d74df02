"""Sweeps on one machine or many: a config's ``sweep()`` -> jobs -> an engine that the user already has."""
