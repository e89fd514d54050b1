"""Images: decoding, preprocessing, augmentation, and the processes that decode them."""
