"""What goes to the disk and to the object store."""
