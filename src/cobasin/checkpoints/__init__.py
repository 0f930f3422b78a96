"""Models on disk: read, typed, identified, written."""
