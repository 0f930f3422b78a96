"""The search itself, on tensors in canonical form: the element that brings one model closest to another."""
