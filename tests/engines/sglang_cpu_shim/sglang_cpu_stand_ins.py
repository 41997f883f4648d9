"""Lets SGLang be imported on a CPU without Triton and beside PyPI's torchvision, for tests. Imported at Python's start-up (a path file).

Triton's decorators hand the function back: its kernels are never launched on a CPU. PyPI's torchvision is built for CUDA; beside a torch
for CPUs its library doesn't load, so the two operators that its Python code registers on are declared.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types


class _Anything(types.ModuleType):
    """A module in which every name is there: classes by capital letters, modules otherwise."""

    def __init__(self, name):
        super().__init__(name)
        self.__path__ = []
        self.__file__ = __file__
        self.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)

    def __getattr__(self, name):
        if name[:2] == "__":
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        made = type(name, (), {"__init__": lambda self, *a, **k: None}) if name[0].isupper() else sys.modules.get(full) or _Anything(full)
        if isinstance(made, types.ModuleType):
            sys.modules[full] = made
        setattr(self, name, made)
        return made

    def __call__(self, *arguments, **named):
        return arguments[0] if len(arguments) == 1 and not named and callable(arguments[0]) else lambda function: function


class _Triton(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] == "triton" else None

    def create_module(self, spec):
        module = sys.modules.get(spec.name) or _Anything(spec.name)
        if spec.name == "triton":
            module.__version__ = "3.0.0"
            module.cdiv = lambda a, b: (a + b - 1) // b
            module.next_power_of_2 = lambda n: 1 << max(n - 1, 0).bit_length()
        return module

    def exec_module(self, module):
        pass


class _TorchvisionOperators(importlib.abc.MetaPathFinder):
    """Finds nothing: declares the operators just before torchvision is looked for."""

    library = None

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            type(self).library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                self.library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


sys.meta_path.insert(0, _TorchvisionOperators())
if importlib.util.find_spec("triton") is None:
    sys.meta_path.insert(0, _Triton())
