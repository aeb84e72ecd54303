"""Rows from files: formats, columns, labels, splits, and readers of rows and of texts."""
