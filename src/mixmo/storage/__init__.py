"""Files that are whole or absent, their checksums, weights on disk."""
