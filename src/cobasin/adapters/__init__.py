"""LoRA adapters, as PEFT writes them: they move with the element of their base, and have a gauge of their own."""
