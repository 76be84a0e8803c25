"""What the compilers of accelerators say about a recipe, on a machine that has no accelerator."""
