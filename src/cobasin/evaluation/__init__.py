"""Running models: probe inputs, loss along a line, pictures."""
