"""Membership inference attacks: from the score store to membership scores, decisions and tables."""
