"""Builds the door for the PyTorch that is installed, beside the library: pip install src/interop/torch

The library comes from the source tree, which this builds if necessary, or from an installed Stretto at STRETTO_PREFIX. It
becomes part of the package.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parents[2]


def torch_flags():
    # pip builds in an environment without PyTorch. Without pip's path, this process finds the PyTorch that
    # will load the door.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    found = subprocess.run([sys.executable, HERE / "torch_build.py"], env=environment, capture_output=True, text=True)
    if found.returncode != 0:
        sys.exit(f"The door needs PyTorch in the environment that it is installed to, and {sys.executable} has none:\n"
                 f"{found.stderr.strip()}")
    return json.loads(found.stdout)


def library():
    """Returns the folder of the headers, and the library file."""
    prefix = os.environ.get("STRETTO_PREFIX")
    if prefix:
        found = sorted(pathlib.Path(prefix).glob("lib*/**/libstretto.so"))
        if not found:
            sys.exit(f"STRETTO_PREFIX={prefix} has no lib*/**/libstretto.so; install Stretto there.")
        return pathlib.Path(prefix) / "include", found[0]
    if not (TREE / "include/stretto/stretto.hpp").exists():
        sys.exit("The door is built in Stretto's source tree, or beside an installed Stretto; set STRETTO_PREFIX to that.")
    build = pathlib.Path(os.environ.get("STRETTO_BUILD", TREE / "build"))
    if not (build / "CMakeCache.txt").exists() and "STRETTO_BUILD" not in os.environ:
        build = TREE / "build-pip"  # ./dev build must not find a folder with another generator
    if not (build / "CMakeCache.txt").exists():
        subprocess.run(["cmake", "-S", TREE, "-B", build, "-DCMAKE_BUILD_TYPE=Release"], check=True)
    subprocess.run(["cmake", "--build", build, "--target", "stretto", "-j", str(os.cpu_count())], check=True)
    return TREE / "include", build / "src/libstretto.so"


class BuildWithLibrary(build_ext):
    def build_extension(self, extension):
        flags = torch_flags()
        include, built = library()
        target = pathlib.Path(self.get_ext_fullpath(extension.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        # The file is named by its soname, because the door looks for that name in its own folder.
        soname = built.resolve().name
        for line in subprocess.run(["objdump", "-p", built], check=True, capture_output=True, text=True).stdout.splitlines():
            if line.split()[:1] == ["SONAME"]:
                soname = line.split()[1]
        shutil.copy2(built.resolve(), target.parent / soname)

        # PyTorch's headers take most of the compile time, so one translation unit reads them once.
        unity = pathlib.Path(self.build_temp) / "stretto_torch.cpp"
        unity.parent.mkdir(parents=True, exist_ok=True)
        unity.write_text("".join(f'#include "{source}"\n' for source in sorted((HERE / "csrc").rglob("*.cpp"))))
        extension.sources = [str(unity)]
        extension.include_dirs = [str(include), str(HERE / "csrc")]
        extension.define_macros = [tuple(each.split("=", 1)) for each in flags["define"]]
        extension.extra_compile_args = ["-std=c++20", "-O1", "-g0", "-fvisibility=hidden"]
        extension.extra_compile_args += [f"-isystem{path}" for path in flags["include"]]
        extension.library_dirs = [flags["library_dir"]]
        extension.libraries = flags["libraries"]
        extension.extra_link_args = [str(target.parent / soname), "-Wl,-rpath,$ORIGIN", f"-Wl,-rpath,{flags['library_dir']}"]
        super().build_extension(extension)


with tempfile.TemporaryDirectory() as folder:  # otherwise the build's files would stay beside this one
    setup(
        ext_modules=[Extension("stretto_torch._C", [])],
        cmdclass={"build_ext": BuildWithLibrary},
        options={"build": {"build_base": folder}, "egg_info": {"egg_base": folder}},
    )
