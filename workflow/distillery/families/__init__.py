"""One adapter file per model family, behind one protocol."""
