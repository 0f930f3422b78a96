"""Types, groups, specs and elements: what a model's symmetry group is and how it acts."""
