#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the Debian package of a build: tools/deb.py BUILD OUT [--uncompressed]

The package holds the program, the library with its headers and CMake files, libtorch, the manual page and completions for
shells. Everything is in /usr/lib/tessera-train, as `cmake --install` arranges it; /usr/bin/tessera is a link. The libraries of
Debian that it depends on are those of the system on which it was built.
"""

import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from wheel import TOP, set_runpath, version

NAME = "tessera-train"
HOME = f"usr/lib/{NAME}"  # one folder, so that the program finds its library and its data


def maintainer() -> str:
    """Who makes the package, as Debian's own tools know it: DEBFULLNAME and DEBEMAIL."""
    name = os.environ.get("DEBFULLNAME", "The authors of tessera")
    return f"{name} <{os.environ.get('DEBEMAIL', 'tessera@tessera.invalid')}>"


def run(*words: str, **options) -> str:
    return subprocess.run(list(words), check=True, stdout=subprocess.PIPE, text=True, **options).stdout


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        sys.exit(f"error: {name} is not installed\n  fix: apt-get install dpkg-dev binutils")
    return found


def libtorch_of(build: Path) -> Path:
    cache = (build / "CMakeCache.txt").read_text(encoding="utf-8")
    return Path(re.search(r"^TESSERA_LIBTORCH:\w+=(.+)$", cache, re.MULTILINE)[1])


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def write_gz(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def install(build: Path, root: Path) -> None:
    """Installs the build, and libtorch next to it."""
    home = root / HOME
    run("cmake", "--install", str(build), "--prefix", str(home), "--strip")
    shutil.copytree(libtorch_of(build), home / "libtorch", symlinks=True)
    set_runpath(
        next(home.glob("lib*/**/libtessera.so")),
        "$ORIGIN/../libtorch/torch/lib:$ORIGIN/../libtorch/onednn/lib",
    )
    config = next(home.glob("lib*/**/tesseraConfig.cmake"))
    text = config.read_text(encoding="utf-8")
    config.write_text(
        re.sub(r'set\(TESSERA_LIBTORCH ".*?"', f'set(TESSERA_LIBTORCH "/{HOME}/libtorch"', text), encoding="utf-8"
    )
    for library in home.rglob("*.so*"):
        library.chmod(0o644)
    # Those of the wheels have tables for linkers and debuggers that no run reads, 100 MB in all.
    files = [home / "bin/tessera", *(file for file in home.rglob("*.so*") if not file.is_symlink())]
    run(program("strip"), "--strip-unneeded", "--remove-section=.comment", "--remove-section=.note", *map(str, files))


def add_system_files(build: Path, root: Path) -> None:
    """The link to the program, and what shells, man and CMake look for in the system's folders."""
    tessera = str(build / "bin/tessera")
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/tessera").symlink_to(f"../lib/{NAME}/bin/tessera")
    write_gz(root / "usr/share/man/man1/tessera.1.gz", run(tessera, "man"))
    write(root / "usr/share/bash-completion/completions/tessera", run(tessera, "completion", "bash"))
    write(root / "usr/share/fish/vendor_completions.d/tessera.fish", run(tessera, "completion", "fish"))
    for file in ("tesseraConfig.cmake", "tesseraConfigVersion.cmake"):
        found = next((root / HOME).glob(f"lib*/**/{file}")).relative_to(root)
        write(root / "usr/lib/cmake/tessera" / file, f"include(/{found})\n")


def add_documents(root: Path) -> None:
    documents = root / "usr/share/doc" / NAME
    licence = root / HOME / "share/tessera/gpt2/LICENSE"  # Debian has licences in one file
    text = (TOP / "tools/deb_copyright.txt").read_text(encoding="utf-8")
    year = run("git", "-C", str(TOP), "log", "-1", "--date=format:%Y", "--format=%cd").strip()
    paragraph = "".join(f" {line.strip() or '.'}\n" for line in licence.read_text(encoding="utf-8").splitlines())
    write(documents / "copyright", text.replace("{HOME}", HOME).replace("{YEAR}", year).replace("{GPT2}\n", paragraph + "\n"))
    licence.unlink()
    date = run("git", "-C", str(TOP), "log", "-1", "--format=%cD").strip()
    write_gz(
        documents / "changelog.gz",
        f"{NAME} ({version()}) unstable; urgency=medium\n\n  * CHANGELOG.md tells what is new.\n\n -- {maintainer()}  {date}\n",
    )
    shutil.copy2(TOP / "CHANGELOG.md", documents / "CHANGELOG.md")
    shutil.copy2(TOP / "README.md", documents / "README.md")


def dependencies(root: Path, box: Path) -> str:
    """Debian's packages with the libraries that the program and libtessera need."""
    write(box / "debian/control", f"Source: {NAME}\n\nPackage: {NAME}\nArchitecture: amd64\n")
    files = [root / HOME / "bin/tessera", next((root / HOME).glob("lib*/**/libtessera.so"))]
    own = [folder for folder in (root / HOME / "libtorch").rglob("lib") if folder.is_dir()]
    said = run(
        program("dpkg-shlibdeps"),
        "-O",
        "--ignore-missing-info",
        *[f"-l{folder}" for folder in own],
        *[f"-e{file}" for file in files],
        cwd=box,
        stderr=subprocess.DEVNULL,
    )
    return re.search(r"shlibs:Depends=(.*)", said)[1]


def control(root: Path, box: Path) -> None:
    size = sum(file.lstat().st_size for file in root.rglob("*") if file.is_file()) // 1024
    write(
        root / "DEBIAN/control",
        f"Package: {NAME}\nVersion: {version()}\nArchitecture: amd64\nMaintainer: {maintainer()}\n"
        f"Installed-Size: {size}\nDepends: {dependencies(root, box)}\nSuggests: openssh-client, libcurl4\nSection: science\nPriority: optional\n"
        "Description: train large models on any number of processes and hosts\n"
        " tessera trains, fine-tunes and aligns transformer models from one JSON file,\n"
        " on one core or many hosts, with the same losses. It reads and writes the\n"
        " files of Hugging Face, DeepSpeed, Megatron-LM and others.\n",
    )
    lines = []
    for file in sorted(p for p in root.rglob("*") if p.is_file() and not p.is_symlink()):
        name = file.relative_to(root).as_posix()
        if not name.startswith("DEBIAN/"):
            lines.append(run("md5sum", name, cwd=root))
    write(root / "DEBIAN/md5sums", "".join(lines))


def main() -> None:
    if len(sys.argv) not in (3, 4) or sys.argv[3:] not in ([], ["--uncompressed"]):
        sys.exit(__doc__)
    compression = ["-Znone"] if sys.argv[3:] else ["-Zxz", "-z1"]  # Debian's archive takes no zstd
    build, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    if not (build / "lib/libtessera.so").exists():
        sys.exit(f"error: {build} has no libtessera.so\n  fix: build first: tools/build.sh release")
    os.umask(0o022)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tessera-deb-") as name:
        box = Path(name)
        root = box / "root"
        root.mkdir()
        install(build, root)
        add_system_files(build, root)
        add_documents(root)
        control(root, box)
        for folder in root.rglob("*"):
            if folder.is_dir() and not folder.is_symlink():
                folder.chmod(0o755)
        file = out / f"{NAME}_{version()}_amd64.deb"
        run(program("dpkg-deb"), "--root-owner-group", *compression, "--build", str(root), str(file))
        print(file)


if __name__ == "__main__":
    main()
