"""From models and a recipe to the merged tensors."""
