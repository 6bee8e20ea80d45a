# SPDX-License-Identifier: Apache-2.0
"""Makes a folder of Python packages, torch among them, from the wheels in a folder: what the tests of the Python package use.

usage: unpack_python.py WHEELS TARGET LIBTORCH COMPILER

PyPI's torch is built for CUDA and needs 4 GB of libraries to be imported, although a machine without a GPU calls none of them.
TARGET holds everything of torch but its kernels for CUDA; small libraries take their places, which define the symbols that the
others look for. torch finds no GPU then, as it does on any machine without one. libtorch_cpu.so, with all operations, is the
wheel's own: a link to that of LIBTORCH if the two are the same file.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile
import zlib

# What training on a CPU does not use. The libraries among them are replaced by STAND_INS, or are opened by nobody.
LEFT_OUT = ("torch/include/", "torch/share/", "torch/bin/protoc", "torch/bin/ptxas", "torch/lib/libtorch_cuda", "torch/lib/libtorch_nvshmem")
STAND_INS = ("libtorch_cuda.so", "libcudnn.so.9", "libcufile.so.0")
CPU = "torch/lib/libtorch_cpu.so"
SYSTEM = ("c", "m", "stdc++", "gcc_s", "dl", "pthread", "rt")
PROOF = """
import torch
assert not torch.cuda.is_available()
torch.ones(2, requires_grad=True).sum().backward()
import torch.distributed.run, transformers, datasets, accelerate.commands.launch
transformers.Trainer, transformers.GPT2LMHeadModel
"""


def same(info, path):
    """True if a file is the one in a wheel."""
    if not path.exists() or path.stat().st_size != info.file_size:
        return False
    found = 0
    with open(path, "rb") as file:
        while chunk := file.read(1 << 22):
            found = zlib.crc32(chunk, found)
    return found == info.CRC


def put(source, target):
    """A second name of a file, or a copy on another file system."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def unpack(path, target, libtorch):
    wheel = zipfile.ZipFile(path)
    for info in wheel.infolist():
        name = info.filename
        if name.startswith(LEFT_OUT) or ".data/" in name or "/tests/" in name or name.endswith("/"):
            continue
        if name == CPU and same(info, libtorch / CPU):
            put(libtorch / CPU, target / CPU)
            continue
        file = pathlib.Path(wheel.extract(info, target))
        file.chmod(0o755 if (info.external_attr >> 16) & 0o100 else 0o644)


def symbols(which, files):
    out = subprocess.run(["nm", "-D", f"--{which}-only", *map(str, files)], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1].split("@")[0] for line in out.splitlines() if len(line.split()) >= 2}


def system_libraries(compiler):
    for name in SYSTEM:
        for suffix in (".so.6", ".so.1", ".so.2", ".so.0"):
            found = subprocess.run([compiler, f"-print-file-name=lib{name}{suffix}"], check=True, capture_output=True, text=True)
            if os.path.isabs(found.stdout.strip()):
                yield found.stdout.strip()
                break


def assembly(missing):
    """A library of functions that return the address of zeros, and of type information; nothing calls them without a GPU."""
    lines = [".text"]
    lines += [f".globl {n}\n.type {n},@function\n{n}:" for n in missing if not n.startswith(("_ZTI", "_ZTV"))]
    lines += ["lea zeros(%rip), %rax\nret", ".data"]
    for n in missing:
        if n.startswith("_ZTI"):  # types are told apart by their names
            lines.append(f'name{n}: .string "{n[4:]}"\n.balign 16\n.globl {n}\n.type {n},@object')
            lines.append(f"{n}: .quad _ZTVN10__cxxabiv117__class_type_infoE+16\n.quad name{n}\n.size {n},16")
        elif n.startswith("_ZTV"):
            lines.append(f".balign 16\n.globl {n}\n.type {n},@object\n{n}: .zero 512\n.size {n},512")
    return "\n".join([*lines, ".bss\n.balign 64\nzeros: .zero 4096", '.section .note.GNU-stack,"",@progbits', ""])


def add_stand_ins(target, compiler):
    lib = target / "torch/lib"
    needing = [lib / name for name in ("libtorch_python.so", "libc10_cuda.so", "libshm.so")]
    there = [*needing, lib / "libtorch_cpu.so", lib / "libc10.so", *(target / "nvidia").rglob("*.so*"), *system_libraries(compiler)]
    missing = symbols("undefined", needing) - symbols("defined", there)
    missing = sorted(n for n in missing if not n.startswith(("Py", "_Py", "_ITM_", "__gmon", "_ZTH")))
    source = target / "stand_ins.s"
    for number, name in enumerate(STAND_INS):
        source.write_text(assembly(missing if number == 0 else []))
        words = [compiler, "-shared", "-o", str(lib / name), str(source), f"-Wl,-soname,{name}"]
        subprocess.run(words, check=True)
    source.unlink()


def main():
    wheels, target, libtorch = map(pathlib.Path, sys.argv[1:4])
    target.mkdir(parents=True)
    for path in sorted(wheels.glob("*.whl")):
        unpack(path, target, libtorch)
    for file in (libtorch / "nvidia").rglob("*.so*"):
        put(file, target / file.relative_to(libtorch))
    add_stand_ins(target, sys.argv[4])
    # The proof, with the Python that will use it, which also compiles what is imported most.
    env = {**os.environ, "PYTHONPATH": str(target), "LD_LIBRARY_PATH": ""}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run([sys.executable, "-c", PROOF], check=True, env=env)


if __name__ == "__main__":
    main()
