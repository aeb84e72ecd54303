"""Rows from files: formats, columns, labels, splits, and the readers of rows and of texts."""
