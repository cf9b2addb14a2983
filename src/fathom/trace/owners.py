"""Whose code a Python frame is, by its file: the user's, a library's, or the framework's with Python's own.

Torch cuts the paths that Python imports from off its frames ("transformers/models/vit/modeling_vit.py(252): forward"):
installed packages are told by their names.
"""

from __future__ import annotations

import re
from functools import cache

USERS, LIBRARY, FRAMEWORK, NO_SOURCE = 3, 2, 1, 0  # the larger, the more a frame says
HARNESS = -1  # Fathom itself: what is around it called Fathom and not the op
FRAME = re.compile(r"(?P<path>.+)\(\d+\): .+")
FRAMEWORKS = {"torch", "functorch", "triton", "torchgen", "caffe2"}
_LIBRARIES = """
transformers diffusers accelerate peft datasets tokenizers safetensors huggingface_hub trl sentence_transformers timm
torchvision torchaudio torchtext torchdata torchrec torchao torchtune fbgemm_gpu torch_geometric torch_scatter
torch_sparse dgl monai lightning pytorch_lightning lightning_fabric lightning_utilities fastai ignite composer deepspeed
fairscale fairseq megatron apex transformer_engine flash_attn xformers bitsandbytes vllm sglang aiter sgl_kernel
flashinfer tensorrt_llm torch_tensorrt whisper open_clip clip einops numpy scipy pandas sklearn PIL cv2 albumentations
tqdm wandb mlflow tensorboard hydra omegaconf absl click typer rich ray dask mpi4py uvloop uvicorn fastapi starlette zmq
IPython ipykernel traitlets tornado debugpy pytest _pytest pluggy joblib cloudpickle gymnasium gym stable_baselines3
tensordict onnxruntime openvino
"""
# of the standard library those that stand in stacks; by no means all, as a user's file may be called profile.py
_STANDARD = """
abc asyncio codecs collections concurrent contextlib copy dataclasses enum functools genericpath importlib inspect json
logging multiprocessing os pathlib pickle posixpath queue random re runpy selectors shutil socket socketserver
subprocess tempfile threading traceback types typing unittest uuid warnings weakref
"""
LIBRARIES, STANDARD = frozenset(_LIBRARIES.split()), frozenset(_STANDARD.split())


_INSTALLED = re.compile(r"(?:site|dist)-packages/(.+)")


@cache
def owner_of(frame: str) -> int:
    """Whose code a frame is, by its file."""
    found = FRAME.fullmatch(frame)
    if found is None:
        return NO_SOURCE  # "<built-in function linear>", "nn.Module: Linear_0"
    path = found["path"].replace("\\", "/")
    if path.startswith("<") and not path.startswith("<ipython-input"):
        return FRAMEWORK  # "<frozen os>", "<string>", "<eval_with_key>.0"
    installed = _INSTALLED.search(path)
    top = _top(path)
    if top == "fathom" and (installed or not path.startswith("/")):
        return HARNESS
    if top in FRAMEWORKS or "/torchinductor_" in path:
        return FRAMEWORK
    if installed or (top in LIBRARIES and not path.startswith("/")):
        return LIBRARY
    standard = re.search(r"/lib/python3[^/]*/", path) or (top in STANDARD and not path.startswith("/"))
    return FRAMEWORK if standard else USERS


@cache
def is_torch(frame: str) -> bool:
    """Whether it is of the framework itself, and not of Python's own library."""
    found = FRAME.fullmatch(frame)
    return found is not None and owner_of(frame) == FRAMEWORK and _top(found["path"].replace("\\", "/")) in FRAMEWORKS


def _top(path: str) -> str:
    """The package that a file is in, where packages are installed; else the first part of its path."""
    installed = _INSTALLED.search(path)
    return (installed[1] if installed else path).lstrip("./").partition("/")[0].removesuffix(".py")
