"""Causal language models of Hugging Face: their losses on texts, and their fine-tuning.

The only package that imports torch, transformers and peft, and only inside functions, so that all other
commands work without them. They are the extra ``hf``.
"""
