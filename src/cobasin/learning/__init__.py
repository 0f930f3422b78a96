"""Learning on data: the descent, what is learned from it, and models whose parameters are computed."""
