"""Images: decoding, preprocessing, augmentation, and worker processes for decoding."""
