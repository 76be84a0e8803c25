"""What a run looks like: its report, the paper's figures, runs side by side."""
