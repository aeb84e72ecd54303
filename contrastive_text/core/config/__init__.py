"""Configurations as plain data: class paths, specs of parts, checks of untrusted files, and parser errors."""
