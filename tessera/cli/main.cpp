// SPDX-License-Identifier: Apache-2.0
// The program's entry point. It needs only the C++ library, so that it can report any missing
// library: which one, where it was searched, and how to install it.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

namespace {

namespace fs = std::filesystem;

constexpr int kExitMemory = 5, kExitEnvironment = 8;
constexpr const char* kLibrary = "libtessera.so";
constexpr const char* kLibtorch = "libtorch-2.11.0";

using Main = int (*)(int, char**);

/// The folder of the library, relative to a program that was built (build/PRESET/bin) or installed
/// (PREFIX/bin).
std::vector<fs::path> library_places() {
  std::error_code unknown;
  const fs::path bin = fs::read_symlink("/proc/self/exe", unknown).parent_path();
  const fs::path root = bin.parent_path();
  return {root / "lib" / kLibrary,
          root / "lib" / "x86_64-linux-gnu" / kLibrary,
          root / "lib64" / kLibrary,
          bin / kLibrary};
}

/// Folders into which tools/setup.sh may have installed libtorch, in its order.
std::vector<fs::path> libtorch_places() {
  std::vector<fs::path> caches;
  const auto add = [&](const char* variable, const char* below) {
    const char* const value = std::getenv(variable);
    if (value != nullptr && *value != '\0') caches.push_back(fs::path(value) / below);
  };
  add("TESSERA_CACHE", "");
  add("XDG_CACHE_HOME", "tessera");
  add("HOME", ".cache/tessera");
  std::error_code unknown;  // a build tree is inside the clone, whose own cache comes last
  const fs::path bin = fs::read_symlink("/proc/self/exe", unknown).parent_path();
  caches.push_back(bin.parent_path().parent_path().parent_path() / ".cache");
  for (fs::path& cache : caches)
    cache = cache / kLibtorch / "torch" / "lib";
  return caches;
}

bool is_there(const fs::path& path) {
  std::error_code unknown;
  return fs::exists(path, unknown);
}

/// The name of the missing file in the loader's message; empty if there is none.
std::string missing_library(const std::string& message) {
  const auto end = message.find(": cannot open shared object file");
  return end == std::string::npos ? "" : message.substr(0, end);
}

bool is_of_libtorch(std::string_view library) {
  for (const char* part : {"torch", "c10", "gomp", "cudart", "cupti"}) {
    if (library.find(part) != std::string_view::npos) return true;
  }
  return false;
}

int complain(const std::string& what, const std::vector<fs::path>& looked, const char* fix) {
  std::fprintf(stderr, "error: %s\n", what.c_str());
  for (const fs::path& place : looked)
    std::fprintf(stderr, "  looked for it at %s\n", place.c_str());
  std::fprintf(stderr, "  fix: %s\n", fix);
  return kExitEnvironment;
}

/// The limit of the process's memory, if it may be the reason for the loader's message.
rlim_t memory_limit_behind(const std::string& message) {
  rlimit memory{};
  const bool fits = message.find("failed to map segment") != std::string::npos ||
                    message.find("annot allocate memory") != std::string::npos;
  return fits && getrlimit(RLIMIT_AS, &memory) == 0 ? memory.rlim_cur : RLIM_INFINITY;
}

int complain_about_load(const fs::path& library, const std::string& message) {
  if (const rlim_t limit = memory_limit_behind(message); limit != RLIM_INFINITY) {
    complain("the memory of a process is limited to " + std::to_string(limit >> 20U) +
                 " MiB, too little to load the libraries of tessera",
             {},
             "raise the limit before the program starts: ulimit -v unlimited");
    return kExitMemory;
  }
  const std::string missing = missing_library(message);
  if (missing.empty()) {
    return complain("the library of tessera cannot be loaded: " + message,
                    {library},
                    "tools/setup.sh && tools/build.sh release");
  }
  const std::string what =
      "a library that tessera needs is missing: " + fs::path(missing).filename().string();
  if (!is_of_libtorch(missing)) {
    return complain(what,
                    {"the system's library folders"},
                    "tools/setup.sh (it installs or names the Debian package)");
  }
  return complain(what,
                  libtorch_places(),
                  "tools/setup.sh (it fetches libtorch into the first writable of these caches)");
}

/// libtorch may have moved since tessera was linked; a library that is already loaded is not
/// searched again.
void load_libtorch_from_cache() {
  for (const fs::path& place : libtorch_places()) {
    if (!is_there(place / "libtorch_cpu.so")) continue;
    if (dlopen((place / "libc10.so").c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr &&
        dlopen((place / "libtorch_cpu.so").c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) {
      return;
    }
  }
}

void* load(const fs::path& library, std::string& message) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) message = dlerror();
  return handle;
}

/// If the parent process closed a standard stream, the next opened file would get its number and be
/// written to as if it were the stream.
void open_closed_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) < 0) static_cast<void>(open("/dev/null", O_RDWR));
  }
}

/// Kernels and readers of nested files would overflow a smaller stack, which ends the process
/// without a message.
bool has_enough_stack() {
  constexpr rlim_t kLeastStack = 256UL << 10U;
  rlimit stack{};
  if (getrlimit(RLIMIT_STACK, &stack) != 0 || stack.rlim_cur >= kLeastStack) return true;
  complain("the stack is limited to " + std::to_string(stack.rlim_cur >> 10U) +
               " KiB, and tessera needs 256 KiB or more",
           {},
           "raise the limit before the program starts: ulimit -s 8192");
  return false;
}

/// libtorch's math library ends the process with a message about its own files where the current
/// folder has no name, and relative paths would lead nowhere.
bool has_current_folder() {
  std::error_code failed;
  static_cast<void>(fs::current_path(failed));
  if (!failed) return true;
  complain("the current folder cannot be determined: " + failed.message(),
           {},
           "it was removed or renamed after this shell entered it; enter a folder that exists: cd");
  return false;
}

/// Ends the process without the destructors of static objects. Those of libtorch take 70 ms, a
/// quarter of what a short command takes, only to free memory that the system takes back anyway.
[[noreturn]] void leave(int code) {
  std::fflush(nullptr);
  _exit(code);
}

}  // namespace

int main(int argc, char** argv) {
  open_closed_streams();
  if (!has_enough_stack() || !has_current_folder()) return kExitEnvironment;
  for (const fs::path& library : library_places()) {
    if (!is_there(library)) continue;
    std::string message;
    void* handle = load(library, message);
    if (handle == nullptr && is_of_libtorch(missing_library(message))) {
      load_libtorch_from_cache();
      handle = load(library, message);
    }
    if (handle == nullptr) return complain_about_load(library, message);
    const auto run = reinterpret_cast<Main>(dlsym(handle, "tessera_main"));
    if (run != nullptr) leave(run(argc, argv));
    return complain_about_load(library, "it has no tessera_main, so it is of another version");
  }
  return complain(std::string("the library of tessera is missing: ") + kLibrary,
                  library_places(),
                  "tools/setup.sh && tools/build.sh release, or cmake --install build/release");
}
