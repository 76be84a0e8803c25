"""Fine-tuning on other data: the grid of runs, the choice among them, the table they end in."""
