"""What the commands do, one a file."""
