"""One-shot models: embeddings, classification, reranking, scores."""
