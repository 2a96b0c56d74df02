"""Losses and scores of models from elsewhere: `lm-mia audit FILE` and `lm-mia import FILE`."""
