"""How an image, and a set of images, is scored: each measure once, its function and what it is."""
