"""Two models or more over the same tasks, with intervals."""
