"""What the commands print, in files that are called as those of `cli`."""
