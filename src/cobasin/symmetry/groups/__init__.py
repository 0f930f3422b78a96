"""The groups that act on a space, each with its exact solver; one solver a file."""

from cobasin.symmetry.groups.base import Group, Value
from cobasin.symmetry.groups.diagonal import Diagonal
from cobasin.symmetry.groups.gram import Gram
from cobasin.symmetry.groups.isometry import General, Orthogonal
from cobasin.symmetry.groups.permutation import Permutation
from cobasin.symmetry.groups.rotation import Rotation2

SignedPermutation = Permutation(signed=True)

__all__ = [
    "Diagonal",
    "General",
    "Gram",
    "Group",
    "Orthogonal",
    "Permutation",
    "Rotation2",
    "SignedPermutation",
    "Value",
]
