"""The kernel IR: what one program does with tiles of its tensors, as frozen data that a backend prints."""
