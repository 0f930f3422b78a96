"""From models, whatever they are given as, to an element with its report, and from an element to the moved model."""
