"""Statistics of a model on data, which fusion methods ask for: Fisher information, input Grams, activations."""
