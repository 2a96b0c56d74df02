"""What the page shows of every recipe."""
