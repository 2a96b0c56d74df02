"""From documents to a population: corpora, vocabulary, tokenised samples, and who is a member."""
