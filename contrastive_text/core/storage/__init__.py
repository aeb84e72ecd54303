"""Files on disk: atomic writes, locks, reading within limits, and comparison with digests."""
