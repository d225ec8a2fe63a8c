"""From images to features with a trained model of either host: weights, extraction, export."""
