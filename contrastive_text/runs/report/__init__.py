"""The page of a run, and the figures of a sweep."""
