// SPDX-License-Identifier: Apache-2.0
// Log messages for the user and for the log file of the rank. The library never prints: the program
// decides where messages go.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace tessera::log {

enum class Level { Debug, Info, Warning, Error };

/// Receives every message of this process at or above the level. It is called under a lock.
using Sink = std::function<void(Level, std::string_view message)>;

void set_sink(Sink sink);  ///< an empty sink (the default) drops messages
void set_level(Level level);
/// Opens a file (appending) that receives every message with its time, in addition to the sink; an
/// empty path closes it. Throws Error{Io} if it cannot be opened. A later write error, such as a
/// full disk, is reported once as a warning to the sink.
void open_file(const std::string& path);

void debug(std::string_view message);
void info(std::string_view message);
void warn(std::string_view message);
void error(std::string_view message);
/// Logs a warning once per process, however often it is raised.
void warn_once(std::string_view message);

}  // namespace tessera::log
