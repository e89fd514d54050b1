"""Training: settings, the loop, and the folder one training leaves behind."""
