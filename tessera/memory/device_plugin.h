// SPDX-License-Identifier: Apache-2.0
// Plugins: libraries that a rank opens before its first tensor and that register the kernels of a
// device, such as libtessera_cuda.so.
#pragma once

#include <filesystem>
#include <string>

namespace tessera::memory {

/// The function that a plugin exports with C linkage under the name kPluginFunction. `version` is
/// the version of the caller. It registers the plugin's kernels and returns nullptr, or returns why
/// it does not, a sentence that stays valid.
using PluginFunction = const char* (*)(const char* version);
inline constexpr const char* kPluginFunction = "tessera_plugin";

/// The folder of the library, or of the program, that contains this function.
std::filesystem::path own_folder();

/// Opens a plugin, which stays open; later calls with the same path do nothing. The plugin uses the
/// symbols of this library. Throws Error{Environment}, with a fix, if there is no such file, if it
/// cannot be loaded, or if it belongs to another version. Threads: one at a time.
void open_device_plugin(const std::filesystem::path& path);

}  // namespace tessera::memory
