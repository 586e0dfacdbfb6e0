"""What to do about what was found: number formats by layer, in `precision`."""
