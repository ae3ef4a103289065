"""Long texts, rendered and tokenized by processes of their own."""
