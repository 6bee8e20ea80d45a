// SPDX-License-Identifier: Apache-2.0
#include "tessera/memory/device_plugin.h"

#include <set>
#include <string>
#include <system_error>

#include <dlfcn.h>
#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/version.h"

namespace tessera::memory {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBuild =
    "build it from the sources of this program: tools/build.sh release tessera_cuda";

std::string own_file() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0) return "";
  return info.dli_fname;
}

}  // namespace

// The folder is looked up once: the lookup reads all symbols of the library.
fs::path own_folder() {
  static const fs::path folder = [] {
    std::error_code unknown;
    const fs::path file = fs::canonical(own_file(), unknown);
    return unknown ? fs::path(own_file()).parent_path() : file.parent_path();
  }();
  return folder;
}

void open_device_plugin(const fs::path& path) {
  static std::set<fs::path> opened;
  if (opened.contains(path)) return;
  std::error_code unknown;
  TESSERA_REQUIRE(fs::exists(path, unknown),
                  Environment,
                  fmt::format("the plugin {} is missing", path.string()),
                  kBuild);
  // A program that loaded this library for itself alone, as Python does, hides its symbols.
  static_cast<void>(dlopen(own_file().c_str(), RTLD_NOLOAD | RTLD_LAZY | RTLD_GLOBAL));
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const message = dlerror();
    const bool other = std::string(message).find("undefined symbol") != std::string::npos;
    throw Error(Error::Kind::Environment,
                fmt::format("the plugin {} {}: {}",
                            path.string(),
                            other ? "belongs to another version of tessera" : "cannot be loaded",
                            message),
                kBuild);
  }
  const auto plugin = reinterpret_cast<PluginFunction>(dlsym(library, kPluginFunction));
  const char* const failure =
      plugin == nullptr ? "it is not a plugin of tessera" : plugin(kTesseraVersion);
  TESSERA_REQUIRE(failure == nullptr,
                  Environment,
                  fmt::format("the plugin {} cannot be used: {}", path.string(), failure),
                  kBuild);
  opened.insert(path);
}

}  // namespace tessera::memory
