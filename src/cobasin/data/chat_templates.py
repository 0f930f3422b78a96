"""Chat templates that have a name: the published formats, in Jinja as Transformers runs it.

Newlines are written inside expressions, so they are the same however blocks are trimmed.
"""

from __future__ import annotations

# A turn is a role and a text between two tokens (OpenAI's chat markup language).
_CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# A header with the role, an empty line, the text without blanks around it (Meta's Llama 3).
_LLAMA3 = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}{{ message['content'] | trim }}<|eot_id|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)

# Paragraphs under headings; what the system says comes before them (Stanford's Alpaca).
_ALPACA = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] + '\\n\\n' }}"
    "{% elif message['role'] == 'user' %}{{ '### Instruction:\\n' + message['content'] + '\\n\\n' }}"
    "{% elif message['role'] == 'assistant' %}"
    "{{ '### Response:\\n' + message['content'] }}{{ eos_token }}{{ '\\n\\n' }}"
    "{% else %}{{ raise_exception('expected the roles system, user and assistant') }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '### Response:\\n' }}{% endif %}"
)

# Instructions in brackets; there is no system, so what it says begins the next instruction (Mistral's first models).
_MISTRAL = (
    "{{ bos_token }}"
    "{% set before = namespace(text='') %}"
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{% set before.text = message['content'] + '\\n\\n' %}"
    "{% elif message['role'] == 'user' %}"
    "{{ '[INST] ' + before.text + message['content'] + ' [/INST]' }}{% set before.text = '' %}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] }}{{ eos_token }}"
    "{% else %}{{ raise_exception('expected the roles system, user and assistant') }}{% endif %}"
    "{% endfor %}"
)

# A role in brackets; what the user says ends with its line, all else with a token; a system is always there (EXAONE 3).
_EXAONE = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}{{ '[|system|][|endofturn|]\\n' }}{% endif %}"
    "{{ '[|' + message['role'] + '|]' + message['content'] }}"
    "{% if message['role'] != 'user' %}{{ '[|endofturn|]' }}{% endif %}{{ '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '[|assistant|]' }}{% endif %}"
)

CHAT_TEMPLATES = {
    "alpaca": _ALPACA,
    "chatml": _CHATML,
    "exaone": _EXAONE,
    "llama3": _LLAMA3,
    "mistral": _MISTRAL,
}
"""By the names that mergekit has for them."""

SPECIAL = {
    "alpaca": (),
    "chatml": ("<|im_start|>", "<|im_end|>"),
    "exaone": ("[|endofturn|]",),
    "llama3": ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "mistral": (),
}
"""What a template writes that is one token in the models of its format."""
