"""Two models: how far apart, before and modulo their symmetries, and what that says of where they come from."""
