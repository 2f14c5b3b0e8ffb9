"""Methods MixMo is compared with that need more than a recipe: feature mixing, GradAug, saliency."""
