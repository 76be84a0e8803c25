"""Reports on runs, the paper's figures, and comparisons of several runs."""
