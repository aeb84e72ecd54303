"""Files on disk: written whole, locked, read within bounds, and compared with their digests."""
