"""Experiments: each module has the tables, the drawing and the claims of one question."""
