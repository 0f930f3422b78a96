"""Models on disk: read, typed, identified, run, written."""
