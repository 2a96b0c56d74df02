"""What a trained model says of every sample: losses, statistics, and extraction."""
