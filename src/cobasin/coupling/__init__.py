"""Couplings of the neurons of two models by optimal transport, and how they flow through a model."""
