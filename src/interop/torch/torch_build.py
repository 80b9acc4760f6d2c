"""Prints, as JSON, the compiler and linker options of the door for the PyTorch of the Python that runs this."""

import json
import os
import sys
import sysconfig

import torch


def main():
    if not torch.distributed.is_available():
        sys.exit("This PyTorch was built without torch.distributed.")
    if not torch._C._GLIBCXX_USE_CXX11_ABI:
        sys.exit(f"PyTorch {torch.__version__} was built with the old ABI of libstdc++, which Stretto's library has not; "
                 "take a newer one (2.7).")
    home = os.path.dirname(torch.__file__)
    include = [f"{home}/include", f"{home}/include/torch/csrc/api/include", sysconfig.get_paths()["include"]]
    # Modules recognize each other's classes if pybind11 has the same names in both.
    define = []
    for name in ["COMPILER_TYPE", "STDLIB", "BUILD_ABI"]:
        value = getattr(torch._C, f"_PYBIND11_{name}", None)
        if value is not None:
            define.append(f'PYBIND11_{name}="{value}"')
    json.dump({
        "version": torch.__version__,
        "include": include,
        "define": define,
        "library_dir": f"{home}/lib",
        "libraries": ["torch", "torch_cpu", "torch_python", "c10"],
        "suffix": sysconfig.get_config_var("EXT_SUFFIX"),
    }, sys.stdout)


main()
