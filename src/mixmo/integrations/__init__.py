"""MixMo in other training loops: Lightning, Hugging Face's Trainer, a DataLoader's collate_fn, torch-uncertainty."""
