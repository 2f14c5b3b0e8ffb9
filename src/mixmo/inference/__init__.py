"""From images to predictions: `predict`, `Prediction`, input preparation."""
