"""From records on disk to uint8 batches: sources, transforms, order, pipeline."""
