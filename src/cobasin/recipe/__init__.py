"""Recipes: what to merge and how, in YAML."""

from cobasin.recipe.recipe import Recipe

__all__ = ["Recipe"]
