"""Files on disk: atomic writes, checksums, tensors."""
