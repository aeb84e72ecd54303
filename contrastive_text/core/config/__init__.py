"""Configuration as plain data: class paths, specs of parts, checks of foreign data, answers to typing errors."""
