"""What comes out of a model: data, scores, metrics with their readings, curvature. Nothing here changes a model."""
