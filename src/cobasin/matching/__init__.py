"""Finding the element that brings one model closest to another."""
