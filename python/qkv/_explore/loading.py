"""Models that transformers loads, by name or folder."""

from pathlib import Path
from typing import Any


class Refused(ValueError):
    """Wrong usage or input: one line, of the command with exit code 2."""


def loaded(name: str) -> tuple[Any, Any]:
    """A model that reads text, as the class that it was saved as says what it is for, and its tokenizer."""
    from .._needs import need

    need("qkv explore", "transformers", "torch")
    if not Path(name).exists() and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise Refused(f"there is no folder {name}")
    import huggingface_hub
    import transformers as tf

    huggingface_hub.logging.set_verbosity_error()

    tf.logging.set_verbosity_error()
    tf.utils.logging.disable_progress_bar()
    config = _loaded(tf.AutoConfig, name)
    if getattr(config, "vocab_size", None) is None and not hasattr(config, "text_config"):
        raise Refused(f"{name} ({config.model_type}) reads no text: qkv.transformers.capture_attention takes its own inputs")
    kinds = getattr(config, "architectures", None) or ()
    writes = any(kind.endswith(("ForCausalLM", "LMHeadModel")) for kind in kinds)
    heads = tf.AutoModelForSeq2SeqLM if getattr(config, "is_encoder_decoder", False) else tf.AutoModelForCausalLM if writes else tf.AutoModel
    return _loaded(heads, name), _loaded(tf.AutoTokenizer, name)


def _loaded(kind: Any, name: str) -> Any:
    try:
        made = kind.from_pretrained(name)
    except (OSError, ValueError, KeyError, ImportError) as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise Refused(f"{kind.__name__} cannot load {name}: {why}") from None
    return made.eval() if hasattr(made, "eval") else made
