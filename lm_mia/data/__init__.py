"""Data preparation: corpora, the tokenizer, the population of samples, and which samples each model trains on."""
