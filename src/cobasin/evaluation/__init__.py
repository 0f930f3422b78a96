"""What models do on data: losses and metrics, along a line and in a plane, and in pictures."""
