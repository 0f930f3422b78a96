"""Finding the element between models, whatever they are given as."""
