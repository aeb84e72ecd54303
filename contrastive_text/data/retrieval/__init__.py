"""Queries, a corpus, and which of its documents answer which query: the readers of what is ranked."""
