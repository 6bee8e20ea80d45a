#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the Python wheel of a build: tools/wheel.py BUILD OUT

The wheel holds the program, libtessera, the Python package and the libraries that not every system has. It takes libtorch from
the torch that is installed next to it, and fits every Python of 3.10 and later, because nothing in it is compiled for Python.
"""

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

NAME = "tessera_train"
# Libraries of every system with glibc 2.34 and GCC 11's libstdc++ (Debian's own needs a newer glibc), and those of torch.
SYSTEM = re.compile(r"^(ld-linux-x86-64|linux-vdso|lib(c|m|dl|rt|pthread|util|gcc_s|stdc\+\+))\.so")
TORCH = re.compile(r"^lib(torch|torch_cpu|c10|gomp|cupti|cudart)[-.]")
# The newest versions of symbols of a platform: of RHEL 9, Ubuntu 22.04 and Debian 12, Ubuntu 24.04, Debian 13.
PLATFORMS = [
    {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13)},
    {"GLIBC": (2, 35), "GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13)},
    {"GLIBC": (2, 39), "GLIBCXX": (3, 4, 33), "CXXABI": (1, 3, 15)},
    {"GLIBC": (2, 41), "GLIBCXX": (3, 4, 33), "CXXABI": (1, 3, 15)},
]
TOP = Path(__file__).resolve().parent.parent


def version() -> str:
    text = (TOP / "python/tessera/__init__.py").read_text(encoding="utf-8")
    return re.search(r'__version__ = "([^"]+)"', text)[1]


def torch_version() -> str:
    text = (TOP / "python/tessera/_program.py").read_text(encoding="utf-8")
    return re.search(r'TORCH = "([^"]+)"', text)[1]


def needed(library: Path) -> list[tuple[str, Path]]:
    """The libraries that the loader opens for this one: name and place."""
    out = subprocess.run(["ldd", str(library)], check=True, capture_output=True, text=True).stdout
    found = re.findall(r"^\s*(\S+) => (\S+) \(", out, re.MULTILINE)
    missing = re.findall(r"^\s*(\S+) => not found", out, re.MULTILINE)
    if missing:
        sys.exit(f"error: {library.name} needs {missing[0]}, which is not here\n  fix: build first: tools/build.sh release")
    return [(name, Path(place)) for name, place in found]


def symbols_of(library: Path) -> set[tuple[str, tuple[int, ...]]]:
    """The versions of the system's symbols that the library asks for."""
    out = subprocess.run(["objdump", "-T", str(library)], check=True, capture_output=True, text=True).stdout
    found = re.findall(r"\b(GLIBC|GLIBCXX|CXXABI)_(\d+(?:\.\d+)+)", out)
    return {(kind, tuple(map(int, version.split(".")))) for kind, version in found}


def platform_of(files: list[Path]) -> str:
    """The oldest platform whose systems have every symbol that the files ask for, as a wheel names it."""
    asked = {symbol: file.name for file in files for symbol in symbols_of(file)}
    newer = ""
    for newest in PLATFORMS:
        beyond = [(kind, version) for kind, version in sorted(asked) if version > newest[kind]]
        if not beyond:
            name = "manylinux_{}_{}_x86_64".format(*newest["GLIBC"])
            if newer:
                print(f"The wheel is for {name}, because {newer}; one that is built on Debian 12 fits older systems too.", file=sys.stderr)
            return name
        kind, version = beyond[0]
        newer = f"{asked[beyond[0]]} needs {kind}_{'.'.join(map(str, version))}"
    sys.exit(f"error: {newer}, which no platform of tools/wheel.py has\n  fix: build on Debian 12 or 13")


def set_runpath(library: Path, folders: str) -> None:
    """Replaces the folders in which the loader looks for the libraries that `library` needs."""
    said = subprocess.run(["readelf", "-d", str(library)], check=True, capture_output=True, text=True)
    old = re.search(r"runpath: \[(.*)\]", said.stdout)
    if old:
        with tempfile.NamedTemporaryFile("w", suffix=".cmake") as script:
            # In brackets, because CMake reads $ and ; in quotes.
            script.write(f"file(RPATH_CHANGE FILE [[{library}]] OLD_RPATH [[{old[1]}]] NEW_RPATH [[{folders}]])\n")
            script.flush()
            subprocess.run(["cmake", "-P", script.name], check=True, capture_output=True)


def package_of(library: Path) -> str:
    """The Debian package that brought a library; empty: none."""
    try:
        found = subprocess.run(["dpkg", "-S", f"*/{library.name}"], capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    # The package may know the file by a path through /lib, which is a link to /usr/lib.
    for line in found.stdout.splitlines():
        packages, _, path = line.partition(": ")
        if Path(path).resolve() == library.resolve():
            return packages.split(",")[0].split(":")[0]
    return ""


def add_licences(name: str, library: Path, licences: Path) -> None:
    """Copies what the owners of a library want to be shipped with it."""
    own = library.parent.parent / "share/doc/onednn"
    if name.startswith("libdnnl"):
        (licences / "onednn").mkdir(parents=True)
        # A cache from before these texts were unpacked has none; its licence is the same text as ours.
        for text in sorted(own.iterdir()) if own.is_dir() else [TOP / "LICENSE"]:
            shutil.copy2(text, licences / "onednn" / text.name)
        return
    package = package_of(library)
    text = Path("/usr/share/doc") / package / "copyright"
    if not package or not text.is_file():
        sys.exit(f"error: the licence of {library} is not known\n  fix: build on Debian, whose packages have /usr/share/doc/PACKAGE/copyright")
    (licences / package).mkdir(parents=True, exist_ok=True)
    shutil.copy2(text, licences / package / "copyright")
    for common in set(re.findall(r"/usr/share/common-licenses/([A-Za-z0-9.-]*[A-Za-z0-9])", text.read_text(encoding="utf-8"))):
        (licences / "common-licenses").mkdir(parents=True, exist_ok=True)
        shutil.copy2(Path("/usr/share/common-licenses") / common, licences / "common-licenses" / common)


def stage(build: Path, root: Path) -> str:
    """Installs the build into `root`/tessera and adds the libraries that it needs, with their licences; returns the platform."""
    licences = information(root) / "licenses"
    package = root / "tessera"
    shutil.copytree(TOP / "python/tessera", package, ignore=shutil.ignore_patterns("__pycache__"))
    prefix = root / "prefix"
    subprocess.run(["cmake", "--install", str(build), "--prefix", str(prefix), "--strip"], check=True, capture_output=True)
    (package / "bin").mkdir()
    (package / "lib").mkdir()
    shutil.copy2(prefix / "bin/tessera", package / "bin/tessera")
    library = next(prefix.glob("lib*/**/libtessera.so"))
    bring = dict(needed(build / "lib/libtessera.so"))
    shutil.copy2(library, package / "lib/libtessera.so")
    for folder in prefix.glob("share/tessera"):
        shutil.copytree(folder, package / "share/tessera")
    for name, place in sorted(bring.items()):
        if not SYSTEM.match(name) and not TORCH.match(name):
            shutil.copy2(place.resolve(), package / "lib" / name)
            add_licences(name, place.resolve(), licences)
    # No folder of this machine: the program's environment names those of the installed torch.
    set_runpath(package / "lib/libtessera.so", "$ORIGIN")
    shutil.rmtree(prefix)
    return platform_of([package / "bin/tessera", *sorted((package / "lib").iterdir())])


def information(root: Path) -> Path:
    return root / f"{NAME}-{version()}.dist-info"


def metadata(root: Path, platform: str) -> None:
    info = information(root)
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\n"
        f"Name: {NAME.replace('_', '-')}\nVersion: {version()}\n"
        "Summary: Trains large models on any number of processes and hosts\n"
        "License: Apache-2.0\nRequires-Python: >=3.10\n"
        f"Requires-Dist: torch=={torch_version()}.*\n"
        "Provides-Extra: arrays\nRequires-Dist: numpy; extra == 'arrays'\n"
        "Description-Content-Type: text/markdown\n\n" + (TOP / "README.md").read_text(encoding="utf-8"),
        encoding="utf-8",
    )
    (info / "WHEEL").write_text(
        "Wheel-Version: 1.0\nGenerator: tessera\nRoot-Is-Purelib: false\n"
        f"Tag: py3-none-{platform}\n"
    )
    (info / "entry_points.txt").write_text("[console_scripts]\ntessera = tessera._program:main\n")
    (info / "licenses").mkdir(exist_ok=True)
    shutil.copy2(TOP / "LICENSE", info / "licenses/LICENSE")


def pack(root: Path, out: Path, platform: str) -> Path:
    path = out / f"{NAME}-{version()}-py3-none-{platform}.whl"
    record_name = f"{NAME}-{version()}.dist-info/RECORD"
    rows = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as wheel:
        for file in sorted(p for p in root.rglob("*") if p.is_file()):
            name = file.relative_to(root).as_posix()
            data = file.read_bytes()
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))  # the same bytes for the same build
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if os.access(file, os.X_OK) else 0o100644) << 16
            wheel.writestr(entry, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={digest},{len(data)}")
        wheel.writestr(zipfile.ZipInfo(record_name, (2020, 1, 1, 0, 0, 0)), "\n".join([*rows, f"{record_name},,", ""]))
    return path


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    build, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    if not (build / "lib/libtessera.so").exists():
        sys.exit(f"error: {build} has no libtessera.so\n  fix: build first: tools/build.sh release")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tessera-wheel-") as box:
        root = Path(box) / "wheel"
        root.mkdir()
        platform = stage(build, root)
        metadata(root, platform)
        print(pack(root, out, platform))


if __name__ == "__main__":
    main()
