"""Reading files: compression, encodings, CSV, JSON, CoNLL, FASTA, COCO, folders of images and audio."""
