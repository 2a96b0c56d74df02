"""Evaluation of trained models: the loss and other statistics of every sample, and extraction of training text."""
