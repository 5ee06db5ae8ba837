"""What a model takes on each kind of accelerator, as it was measured."""
