"""From the score store to tables: membership scores, decisions, and what they say of samples."""
