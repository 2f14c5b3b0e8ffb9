"""The parts in other loops: Lightning, Hugging Face's Trainer, a DataLoader's collate function, torch-uncertainty."""
