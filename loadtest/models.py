"""Random models of a wanted size, for measurements: speed does not depend on what weights say."""

from pathlib import Path

SEED = 0


def make_llama_125m(folder: Path, dtype: str) -> Path:
    """A Llama of about 125 M parameters (12 layers, hidden 768) unless `folder` has it already.

    Args:
        dtype: ``bfloat16`` or ``float32``.
    """
    target = folder / f"llama-125m-{dtype}"
    if (target / "config.json").is_file():
        return target
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(SEED)
    config = LlamaConfig(
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=12,
        intermediate_size=2048,
        vocab_size=32000,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
        eos_token_id=None,
        bos_token_id=None,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    building = target.with_name(target.name + ".building")
    model.save_pretrained(building)
    building.rename(target)
    return target
