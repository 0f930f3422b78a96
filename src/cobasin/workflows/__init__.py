"""What the commands do, one a file; and what several of them share."""
