"""LoRA adapters beside a model's own layers: where they can add, and how they do."""
