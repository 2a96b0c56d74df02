"""The report page: numbers, charts, and the document that holds them; what they show is decided elsewhere."""
