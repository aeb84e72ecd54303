"""Rows from files: readers, formats, columns, labels, splits."""
