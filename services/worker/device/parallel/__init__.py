"""One model over several processes, tensor parallel."""
