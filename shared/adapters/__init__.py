"""LoRA adapters: their files, their names, and how their weights lie in pages. No torch."""
